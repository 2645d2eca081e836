#include "sim/units/text_file.h"

#include <array>
#include <system_error>

#include "sim/units/shown.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

struct Signature {
  std::string_view bytes;
  std::string_view format;
};

// First bytes by which common formats are known (libmagic's table).
constexpr std::array kSignatures = {
    Signature{"\x1f\x8b"sv, "compressed by gzip"},
    Signature{"PK\x03\x04"sv, "a zip archive"},
    Signature{"\x28\xb5\x2f\xfd"sv, "compressed by zstd"},
    Signature{"\xfd\x37zXZ"sv, "compressed by xz"},
    Signature{"BZh"sv, "compressed by bzip2"},
    Signature{"PAR1"sv, "a Parquet file"},
    Signature{"\x7f\x45LF"sv, "a program"},
    Signature{"%PDF"sv, "a PDF"},
    Signature{"\xff\xfe\0\0"sv, "UTF-32 text"},
    Signature{"\0\0\xfe\xff"sv, "UTF-32 text"},
    Signature{"\xff\xfe"sv, "UTF-16 text"},
    Signature{"\xfe\xff"sv, "UTF-16 text"},
};

[[noreturn]] void fail(const fs::path& path, const std::string& message) {
  throw TextFileError(path, 0, message);
}

}  // namespace

TextFileError::TextFileError(const fs::path& path, std::int64_t line, const std::string& message)
    : std::invalid_argument(visible(path.string()) + ":" +
                            (line > 0 ? std::to_string(line) + ": " : " ") + visible(message)),
      line_(line),
      message_(visible(message)) {}

std::string_view foreign_format(std::string_view head) {
  for (const Signature& signature : kSignatures) {
    if (head.starts_with(signature.bytes)) return signature.format;
  }
  if (head.find('\0') == std::string_view::npos) return {};
  // ASCII in UTF-16 without a mark has a zero in every other byte.
  const bool is_utf16 = head.size() >= 4 && (head[0] == '\0') != (head[1] == '\0') &&
                        (head[0] == '\0') == (head[2] == '\0') &&
                        (head[1] == '\0') == (head[3] == '\0');
  return is_utf16 ? "UTF-16 text" : "binary, with bytes of zero";
}

std::ifstream open_regular_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail(path, "no such file");
  if (fs::is_directory(status)) fail(path, "is a directory; expected a file");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(path, "is a pipe or a device, not a regular file; expected a file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be read");
  return file;
}

std::string read_text_file(const fs::path& path, std::uint64_t most_bytes) {
  std::ifstream file = open_regular_file(path);
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) fail(path, "cannot be read");
  if (size > most_bytes) {
    fail(path, "has " + std::to_string(size) + " bytes; expected a file of at most " +
                   std::to_string(most_bytes));
  }
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad()) fail(path, "cannot be read");
  constexpr std::size_t kHead = 64;
  if (const std::string_view format = foreign_format(std::string_view(text).substr(0, kHead));
      !format.empty()) {
    fail(path, "is " + std::string(format) + "; expected plain text in UTF-8");
  }
  std::int64_t line = 1;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t length = utf8_length(rest);
    if (length == 0) {
      throw TextFileError(path, line,
                          "found the byte " + visible(rest.substr(0, 1)) +
                              ", which is no UTF-8; expected text in UTF-8");
    }
    if (rest[0] == '\n') ++line;
    rest.remove_prefix(length);
  }
  return text;
}

}  // namespace orrery

#pragma once

// Text files that people hand in, read with care: what is no regular file, no text or beyond all
// measure is refused at once, by what it is.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace orrery {

// what() is "FILE:LINE: message", or "FILE: message" with line 0.
class TextFileError : public std::invalid_argument {
 public:
  TextFileError(const std::filesystem::path& path, std::int64_t line, const std::string& message);
  [[nodiscard]] std::int64_t line() const { return line_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  std::int64_t line_;
  std::string message_;
};

// Throws TextFileError when `path` is missing, a directory, a pipe or device, or cannot be opened.
std::ifstream open_regular_file(const std::filesystem::path& path);

// What `head`, the first bytes of a file, says that it is when it is no plain text: "compressed by
// gzip", "UTF-16 text"; empty for what may be text.
std::string_view foreign_format(std::string_view head);

// All of a file of at most `most_bytes` of UTF-8. Throws as above, and when it is larger or no such
// text, with the line of the first byte that is not.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t most_bytes);

}  // namespace orrery

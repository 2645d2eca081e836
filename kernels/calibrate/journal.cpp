#include "kernels/calibrate/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace orrery::calibrate {
namespace {

constexpr std::string_view kMagic = "orrery-calibration 1";
constexpr double kMicro = 1e-6;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
  if (line.ends_with('\t')) fields.emplace_back();
  return fields;
}

// kernel, dtype, dims, L2, mode, time_us, spread, samples, discarded, SM clock, capped, power_w,
// sustained_us, cost_s, refusal.
constexpr std::size_t kFields = 15;

std::string line_of(const Row& row) {
  const std::string op = op_text(row.op);  // kernel dtype dims
  const std::size_t dtype = op.find(' ') + 1;
  const std::size_t dims = std::min(op.find(' ', dtype), op.size());
  const auto power = row.sustained.value_or(Sustained{});
  const std::vector<std::string> fields = {row.op.kernel,
                                           op.substr(dtype, dims - dtype),
                                           op.substr(std::min(dims + 1, op.size())),
                                           std::string(l2_text(row.state.l2)),
                                           std::string(to_text(row.state.mode)),
                                           number(row.time.value() / kMicro),
                                           number(row.spread),
                                           std::to_string(row.samples),
                                           std::to_string(row.discarded),
                                           std::to_string(row.sm_clock_mhz),
                                           row.power_capped ? "1" : "0",
                                           number(power.power.value()),
                                           number(power.time.value() / kMicro),
                                           number(row.cost.value()),
                                           row.refusal};
  std::string line;
  for (const std::string& field : fields) {
    if (!line.empty()) line += '\t';
    const std::size_t begin = line.size();
    line += field;
    for (const char separator : {'\t', '\n'}) {
      std::replace(line.begin() + static_cast<std::ptrdiff_t>(begin), line.end(), separator, ' ');
    }
  }
  return line + "\n";
}

double parse_number(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) {
    throw std::invalid_argument("found '" + text + "'; expected a number");
  }
  return value;
}

Row row_of(const std::string& line) {
  const std::vector<std::string> fields = split(line);
  if (fields.size() != kFields) {
    throw std::invalid_argument("found " + std::to_string(fields.size()) + " fields; expected " +
                                std::to_string(kFields));
  }
  Row row;
  row.op = {.kernel = fields[0], .dtype = parse_dtype(fields[1]), .dims = parse_dims(fields[2])};
  row.state = parse_state(fields[3], fields[4]);
  row.time = Seconds(parse_number(fields[5]) * kMicro);
  row.spread = parse_number(fields[6]);
  row.samples = static_cast<int>(parse_number(fields[7]));
  row.discarded = static_cast<int>(parse_number(fields[8]));
  row.sm_clock_mhz = static_cast<int>(parse_number(fields[9]));
  row.power_capped = fields[10] == "1";
  const Sustained sustained{.power = Watts(parse_number(fields[11])),
                            .time = Seconds(parse_number(fields[12]) * kMicro)};
  if (sustained.power.value() > 0) row.sustained = sustained;
  row.cost = Seconds(parse_number(fields[13]));
  row.refusal = fields[14];
  return row;
}

void compare(const std::filesystem::path& path, std::span<const Fact> there,
             std::span<const Fact> wanted) {
  for (const Fact& fact : wanted) {
    if (!fact.must_match) continue;
    const auto found = std::ranges::find(there, fact.name, &Fact::name);
    const std::string value = found == there.end() ? "nothing" : found->value;
    if (value != fact.value) {
      throw std::invalid_argument(path.string() + " was measured with " + fact.name + " '" + value +
                                  "', now it is '" + fact.value +
                                  "'; measure into another directory, or start anew with --fresh");
    }
  }
}

}  // namespace

Journal::Journal(const std::filesystem::path& path, std::vector<Fact> facts, bool fresh)
    : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (file_ < 0) fail("open " + path.string());
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) fail("flock " + path.string());
      throw std::invalid_argument(path.string() + " is in use by another calibration");
    }
    if (fresh && ::ftruncate(file_, 0) != 0) fail("truncate " + path.string());
    read(path, facts);
    if (facts_.empty()) {  // nothing there, or killed before the header was complete
      if (::ftruncate(file_, 0) != 0) fail("truncate " + path.string());
      std::string header = std::string(kMagic) + "\n";
      for (const Fact& fact : facts) header += fact.name + "\t" + fact.value + "\n";
      write(header + "\n");
      sync();
      facts_ = std::move(facts);
    }
  } catch (...) {  // the destructor of an unfinished object does not run
    ::close(file_);
    throw;
  }
}

Journal::~Journal() { ::close(file_); }

void Journal::read(const std::filesystem::path& path, std::span<const Fact> wanted) {
  std::ifstream input(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(input), {}};
  const std::size_t complete = text.rfind('\n') + 1;  // 0 without one
  if (complete != text.size() && ::ftruncate(file_, static_cast<off_t>(complete)) != 0) {
    fail("truncate " + path.string());
  }
  std::istringstream lines(text.substr(0, complete));
  std::string line;
  if (!std::getline(lines, line)) return;
  if (line != kMagic) {
    throw std::invalid_argument(path.string() + ":1: found '" + line + "'; expected '" +
                                std::string(kMagic) + "'");
  }
  std::vector<Fact> there;
  int number = 2;
  while (std::getline(lines, line) && !line.empty()) {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    there.push_back(
        {.name = line.substr(0, tab), .value = line.substr(std::min(tab + 1, line.size()))});
    ++number;
  }
  if (!lines) return;  // no empty line: the header is torn
  compare(path, there, wanted);
  while (std::getline(lines, line)) {
    ++number;
    try {
      rows_.push_back(row_of(line));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(path.string() + ":" + std::to_string(number) + ": " +
                                  error.what());
    }
    keys_.insert(key(rows_.back().op, rows_.back().state));
  }
  facts_ = std::move(there);
}

void Journal::append(std::span<const Row> rows) {
  std::string text;
  for (const Row& row : rows) text += line_of(row);
  write(text);
  for (const Row& row : rows) {
    rows_.push_back(row);
    keys_.insert(key(row.op, row.state));
  }
}

void Journal::write(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(file_, text.data(), text.size());
    if (written < 0 && errno != EINTR) fail("write to the journal");
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Journal::sync() {
  if (::fsync(file_) != 0) fail("fsync of the journal");
}

}  // namespace orrery::calibrate

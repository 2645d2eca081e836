#pragma once

// What readers of request traces share: lines of a file, and requests in order of arrival. Every
// error names file and line.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "sim/serve/workload.h"

namespace orrery::trace {

// Throws std::invalid_argument "file:line: message".
[[noreturn]] void fail(const std::filesystem::path& file, std::int64_t line,
                       const std::string& message);
// Throws std::invalid_argument when the file cannot be read.
std::string read_file(const std::filesystem::path& file);

// Calls `row(line_number, text)` for each line that is not empty, line ends removed.
template <typename Row>
void for_each_line(std::string_view text, Row&& row) {
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) row(number, line);
  }
}

// Appends `request` with the next id. Throws as `fail` when its arrival is not finite or before the
// last one's.
void append(Workload& workload, const std::filesystem::path& file, std::int64_t line,
            Request request);
// Whether `max_requests` (0: any number) are there.
bool is_full(const Workload& workload, std::int64_t max_requests);
// The workload with its first arrival moved to 0. Throws std::invalid_argument when it is empty.
Workload finish(Workload workload, const std::filesystem::path& file);

}  // namespace orrery::trace

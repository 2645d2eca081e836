#pragma once

// What readers of request traces share: lines of a file, and requests in order of arrival. Every
// error names file and line.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "sim/serve/workload.h"

namespace orrery::trace {

// Throws std::invalid_argument "file:line: message".
[[noreturn]] void fail(const std::filesystem::path& file, std::int64_t line,
                       const std::string& message);

// Calls `row(line_number, text)` for each line that is not empty, without its end, until it returns
// false. The file is read piece by piece. Throws std::invalid_argument when it is no regular file,
// cannot be read, is compressed, in UTF-16 or binary, or has a line of more than 64 MB.
void for_each_line(const std::filesystem::path& file,
                   const std::function<bool(std::int64_t, std::string_view)>& row);

// Appends `request`, whose arrival is still on the file's clock, with the next id and its arrival
// counted from the first one's. Throws as `fail` when its arrival is not finite, before the last
// one's, or too far from 0 or from the first one's for a double to keep it (kLatestTimestamp,
// kLongestSpan).
class Requests {
 public:
  // `max_requests` 0: any number.
  Requests(std::filesystem::path file, std::int64_t max_requests);
  void append(std::int64_t line, Request request);
  [[nodiscard]] bool is_full() const;
  [[nodiscard]] bool empty() const { return workload_.requests.empty(); }
  // Throws std::invalid_argument when there are none, or fewer than `max_requests`.
  [[nodiscard]] Workload finish(std::int64_t hash_block_tokens = 0);

 private:
  std::filesystem::path file_;
  std::int64_t max_requests_;
  Seconds first_;
  Seconds last_;
  Workload workload_;
};

}  // namespace orrery::trace

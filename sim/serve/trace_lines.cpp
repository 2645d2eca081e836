#include "sim/serve/trace_lines.h"

#include <cmath>
#include <fstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sim/serve/service_checks.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"
#include "sim/units/text_file.h"

namespace orrery::trace {
namespace {

constexpr std::size_t kPiece = 1 << 20;
constexpr std::size_t kLongestLine = 64'000'000;
constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";

// Where doubles keep microseconds; Unix time reaches it in the year 2286.
constexpr Seconds kLatestTimestamp(1e10);

std::string_view without_mark(std::string_view text) {
  return text.starts_with(kUtf8Mark) ? text.substr(kUtf8Mark.size()) : text;
}

}  // namespace

void fail(const std::filesystem::path& file, std::int64_t line, const std::string& message) {
  throw TextFileError(file, line, message);
}

void for_each_line(const std::filesystem::path& file,
                   const std::function<bool(std::int64_t, std::string_view)>& row) {
  std::ifstream input = open_regular_file(file);
  std::vector<char> piece(kPiece);
  std::string text;  // what no line end has been seen of yet
  std::int64_t number = 0;
  const auto take = [&](std::string_view line) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line.empty() || row(number, line);
  };
  bool is_first = true;
  while (input.read(piece.data(), static_cast<std::streamsize>(kPiece)), input.gcount() > 0) {
    std::string_view rest(piece.data(), static_cast<std::size_t>(input.gcount()));
    if (is_first) {
      if (const std::string_view format = foreign_format(rest.substr(0, 64)); !format.empty()) {
        fail(file, 0, "is " + std::string(format) + "; expected plain text in UTF-8");
      }
      rest = without_mark(rest);
      is_first = false;
    }
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      const std::string_view part = rest.substr(0, end);
      const bool goes_on = text.empty() ? take(part) : take(text.append(part));
      if (!goes_on) return;
      text.clear();
      rest.remove_prefix(end + 1);
    }
    text += rest;
    if (text.size() > kLongestLine) {
      fail(file, number + 1,
           "a line of more than " + std::to_string(kLongestLine) +
               " bytes; expected one request in each line");
    }
  }
  if (input.bad()) fail(file, 0, "cannot be read");
  if (!text.empty()) take(text);
}

Requests::Requests(std::filesystem::path file, std::int64_t max_requests)
    : file_(std::move(file)), max_requests_(max_requests) {}

void Requests::append(std::int64_t line, Request request) {
  const Seconds time = request.arrival;
  if (!std::isfinite(time.value())) fail(file_, line, "the timestamp is not finite");
  if (time > kLatestTimestamp || time < -1.0 * kLatestTimestamp) {
    fail(file_, line,
         "the timestamp is " + format_number(time.value()) +
             " s, where a number keeps no microseconds; expected at most " +
             format_number(kLatestTimestamp.value()) + " s");
  }
  if (static_cast<std::int64_t>(workload_.requests.size()) == kMostRequests) {
    fail(file_, line,
         "found more than " + std::to_string(kMostRequests) +
             " requests; expected num_requests of at most that");
  }
  if (empty()) first_ = last_ = time;
  if (time < last_) {
    fail(file_, line, "the timestamp is before that of the request above; expected ascending ones");
  }
  if (time - first_ > kLongestSpan) fail(file_, line, too_late(time - first_));
  last_ = time;
  request.arrival = time - first_;
  request.id = static_cast<std::int64_t>(workload_.requests.size());
  workload_.requests.push_back(std::move(request));
}

bool Requests::is_full() const {
  return max_requests_ > 0 && static_cast<std::int64_t>(workload_.requests.size()) >= max_requests_;
}

Workload Requests::finish(std::int64_t hash_block_tokens) {
  if (empty()) fail(file_, 0, "holds no request");
  if (max_requests_ > 0 && !is_full()) {
    const std::string count = std::to_string(workload_.requests.size());
    fail(file_, 0,
         "holds " + count + " requests; expected num_requests of at most that, found " +
             std::to_string(max_requests_));
  }
  workload_.hash_block_tokens = hash_block_tokens;
  return std::move(workload_);
}

}  // namespace orrery::trace

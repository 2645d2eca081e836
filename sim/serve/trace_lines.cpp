#include "sim/serve/trace_lines.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace orrery::trace {

void fail(const std::filesystem::path& file, std::int64_t line, const std::string& message) {
  throw std::invalid_argument(file.string() + ":" + std::to_string(line) + ": " + message);
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream input(file, std::ios::binary);
  if (!input) throw std::invalid_argument(file.string() + ": cannot be read");
  std::ostringstream text;
  text << input.rdbuf();
  return std::move(text).str();
}

void append(Workload& workload, const std::filesystem::path& file, std::int64_t line,
            Request request) {
  if (!std::isfinite(request.arrival.value())) {
    fail(file, line, "the timestamp is not finite");
  }
  if (!workload.requests.empty() && request.arrival < workload.requests.back().arrival) {
    fail(file, line, "the timestamp is before that of the request above; expected ascending ones");
  }
  request.id = static_cast<std::int64_t>(workload.requests.size());
  workload.requests.push_back(std::move(request));
}

Workload finish(Workload workload, const std::filesystem::path& file) {
  if (workload.requests.empty()) throw std::invalid_argument(file.string() + ": holds no request");
  const Seconds first = workload.requests.front().arrival;
  for (Request& request : workload.requests) request.arrival -= first;
  return workload;
}

bool is_full(const Workload& workload, std::int64_t max_requests) {
  return max_requests > 0 && static_cast<std::int64_t>(workload.requests.size()) >= max_requests;
}

}  // namespace orrery::trace

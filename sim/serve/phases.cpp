#include "sim/serve/phases.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace orrery {

std::optional<RunPhases> run_phases(std::span<const RequestRecord> records) {
  if (records.empty()) return std::nullopt;
  const auto [first, last] = std::ranges::minmax(records, {}, &RequestRecord::arrival);
  const Seconds time = last.arrival - first.arrival;
  if (!(time > Seconds(0))) return std::nullopt;
  std::vector<Seconds> finishes;
  finishes.reserve(records.size());
  Seconds in_service;
  for (const RequestRecord& record : records) {
    finishes.push_back(record.finish);
    in_service += std::min(record.finish, last.arrival) - record.arrival;
  }
  RunPhases phases{.ramp = time,
                   .drain = std::ranges::max(finishes) - last.arrival,
                   .whole = std::ranges::max(finishes) - first.arrival};
  const auto turnover = static_cast<std::size_t>(std::max(std::ceil(in_service / time), 1.0));
  if (turnover <= finishes.size()) {
    const auto nth = finishes.begin() + static_cast<std::ptrdiff_t>(turnover) - 1;
    std::ranges::nth_element(finishes, nth);
    phases.ramp = std::min(*nth - first.arrival, time);
  }
  for (const RequestRecord& record : records) {
    phases.ramp_requests += record.arrival - first.arrival < phases.ramp ? 1 : 0;
    phases.drained_requests += record.finish > last.arrival ? 1 : 0;
  }
  return phases;
}

}  // namespace orrery

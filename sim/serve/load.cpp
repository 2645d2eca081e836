#include "sim/serve/load.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "sim/serve/replica.h"
#include "sim/serve/serve.h"

namespace orrery {

namespace {

// The step that first computes for it, of the last engine that it goes through.
Seconds begun(const RequestRecord& record) {
  return record.decode_replica < 0 ? record.first_scheduled : record.decode_start;
}

// How many have come and not left at each arrival.
std::vector<std::int64_t> queue_lengths(const std::vector<Seconds>& arrivals,
                                        std::vector<Seconds> leave) {
  std::ranges::sort(leave);
  std::vector<std::int64_t> lengths;
  lengths.reserve(arrivals.size());
  std::size_t num_left = 0;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    while (num_left < leave.size() && leave[num_left] <= arrivals[i]) ++num_left;
    lengths.push_back(static_cast<std::int64_t>(i + 1) - static_cast<std::int64_t>(num_left));
  }
  return lengths;
}

// The last four quarters, all of one length; empty where there are too few arrivals.
std::vector<std::span<const std::int64_t>> quarters(const std::vector<std::int64_t>& lengths) {
  const std::size_t length = lengths.size() / 4;
  std::vector<std::span<const std::int64_t>> parts;
  if (length < 2) return parts;
  for (std::size_t i = 4; i > 0; --i) {
    parts.push_back(std::span(lengths).last(i * length).first(length));
  }
  return parts;
}

// The arrival itself always waits, so 1 is none.
bool grows(const std::vector<std::int64_t>& waiting) {
  const auto parts = quarters(waiting);
  if (parts.empty()) return false;
  const std::int64_t least = std::max<std::int64_t>(2, std::ssize(waiting) / 100);
  return std::ranges::min(parts[2]) > 1 &&
         std::ranges::min(parts[3]) > std::ranges::min(parts[2]) && waiting.back() > least;
}

// Counts of independent requests spread as their square root.
bool keep_pace(double num_come, double num_finished) {
  return num_come - num_finished <= 0.1 * num_come + 3 * std::sqrt(num_come);
}

}  // namespace

std::optional<AdmissionLimit> LoadMetrics::limit() const {
  if (!is_overloaded) return std::nullopt;
  const auto most = std::ranges::max_element(held_up);
  constexpr double kHardly = 0.05;  // of the time: then requests wait before the engine knows them
  if (*most < kHardly) return AdmissionLimit::kFrontEnd;
  return static_cast<AdmissionLimit>(most - held_up.begin());
}

LoadMetrics load_metrics(std::span<const RequestRecord> records,
                         std::span<const ReplicaTotals* const> replicas) {
  LoadMetrics load;
  std::vector<Seconds> arrivals;
  std::vector<Seconds> begins;
  std::vector<Seconds> ends;
  for (const RequestRecord& record : records) {
    if (!record.is_measured) continue;
    arrivals.push_back(record.arrival);
    begins.push_back(begun(record));
    ends.push_back(record.finish);
  }
  if (arrivals.size() < 2) return load;
  const Seconds first = arrivals.front();
  const Seconds last = arrivals.back();
  const Seconds time = last - first;
  if (!(time > Seconds(0))) return load;
  const Seconds middle = first + time / 2;
  const auto num_finished =
      std::ranges::count_if(ends, [&](Seconds end) { return end > middle && end <= last; });
  load.offered_requests_per_s = static_cast<double>(arrivals.size() - 1) / time.value();
  load.served_requests_per_s = static_cast<double>(num_finished) / (time.value() / 2);
  const std::vector<std::int64_t> waiting = queue_lengths(arrivals, std::move(begins));
  load.num_waiting = waiting.back() - 1;
  load.is_overloaded = grows(waiting);
  const auto num_come = std::ranges::count_if(arrivals, [&](Seconds at) { return at > middle; });
  load.is_settled = keep_pace(static_cast<double>(num_come), static_cast<double>(num_finished));
  Seconds busy;
  for (const ReplicaTotals* totals : replicas) busy += totals->busy;
  if (busy > Seconds(0)) {
    for (std::size_t i = 0; i < load.held_up.size(); ++i) {
      for (const ReplicaTotals* totals : replicas) load.held_up[i] += totals->held_up[i] / busy;
    }
  }
  return load;
}

}  // namespace orrery

#include "sim/explore/short_run.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "sim/serve/metrics.h"

namespace orrery {

namespace {

Seconds latency(LatencyMetric metric, const RequestRecord& record) {
  switch (metric) {
    case LatencyMetric::kTtft:
      return ttft(record);
    case LatencyMetric::kTpot:
      return tpot(record);
    case LatencyMetric::kE2e:
      break;
  }
  return e2e(record);
}

bool has(LatencyMetric metric, std::int64_t output_tokens) {
  return metric != LatencyMetric::kTpot || output_tokens >= 2;
}

// Measured requests of the whole that have the metric.
std::int64_t count_of(LatencyMetric metric, const Workload& whole) {
  const std::int64_t begin = std::min(whole.warmup_requests, std::ssize(whole.requests));
  return std::count_if(
      whole.requests.begin() + begin,
      whole.requests.begin() + std::max(begin, std::ssize(whole.requests) - whole.drain_requests),
      [&](const Request& request) { return has(metric, request.output_tokens); });
}

// Of `count` requests, how many may lie above a percentile by nearest rank (sim/serve/slo.h).
double allowed_above(double percentile, double count) {
  return count - std::max(std::ceil(percentile / 100 * count - 1e-9), 1.0);
}

bool is_lost(const LatencyLimit& limit, const Workload& whole,
             std::span<const RequestRecord> records) {
  double above = 0;
  double far_above = 0;
  double sum = 0;
  double count = 0;
  for (const RequestRecord& record : records) {
    if (!record.is_measured || !has(limit.metric, record.output_tokens)) continue;
    const Seconds found = latency(limit.metric, record);
    above += found > limit.limit ? 1 : 0;
    far_above += found > limit.limit * kFarAbove ? 1 : 0;
    sum += found.value();
    ++count;
  }
  const auto of_whole = static_cast<double>(count_of(limit.metric, whole));
  const double most = limit.limit.value();
  if (limit.percentile == 0) return sum > most * std::min(of_whole, kFarAbove * count);
  return above > allowed_above(limit.percentile, of_whole) ||
         (limit.percentile <= kTypical && far_above > allowed_above(limit.percentile, count));
}

}  // namespace

Workload first_part(const Workload& workload) {
  const auto all = static_cast<std::int64_t>(workload.requests.size());
  const std::int64_t least = std::max<std::int64_t>(100, 2 * workload.closed_loop_concurrency) +
                             workload.warmup_requests + workload.drain_requests;
  const std::int64_t count = std::min(all, std::max(all / 8, least));
  Workload part = workload;
  part.requests.resize(static_cast<std::size_t>(count));
  return part;
}

bool is_lost(const Slo& slo, const Workload& whole, std::span<const RequestRecord> records) {
  if (std::ranges::any_of(
          slo.limits, [&](const LatencyLimit& limit) { return is_lost(limit, whole, records); })) {
    return true;
  }
  if (!slo.limits_each()) return false;
  const auto missed = std::ranges::count_if(records, [&](const RequestRecord& record) {
    return record.is_measured && !meets(record, slo);
  });
  const auto count = static_cast<double>(count_of(LatencyMetric::kE2e, whole));
  return static_cast<double>(missed) > (1 - slo.attainment) * count + 1e-9;
}

}  // namespace orrery

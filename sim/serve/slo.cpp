#include "sim/serve/slo.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "sim/serve/metrics.h"
#include "sim/serve/serve.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

constexpr double kMean = 0;
constexpr double kLargest = 100;

// Ascending. TPOT is of requests with more than one token.
std::vector<double> sorted_values(LatencyMetric metric, std::span<const RequestRecord> records) {
  std::vector<double> values;
  values.reserve(records.size());
  for (const RequestRecord& record : records) {
    if (!record.is_measured) continue;
    if (metric == LatencyMetric::kTtft) values.push_back(ttft(record).value());
    if (metric == LatencyMetric::kE2e) values.push_back(e2e(record).value());
    if (metric == LatencyMetric::kTpot && record.output_tokens >= 2) {
      values.push_back(tpot(record).value());
    }
  }
  std::ranges::sort(values);
  return values;
}

double statistic(const std::vector<double>& sorted, double percentile) {
  if (sorted.empty()) return 0;
  const auto count = static_cast<double>(sorted.size());
  if (percentile == kMean) return std::accumulate(sorted.begin(), sorted.end(), 0.0) / count;
  const double rank = std::max(std::ceil(percentile / 100 * count - 1e-9), 1.0);
  return sorted[static_cast<std::size_t>(rank) - 1];
}

}  // namespace

std::string statistic_name(double percentile) {
  if (percentile == kMean) return "mean";
  if (percentile == kLargest) return "max";
  return "p" + format_number(percentile);
}

double parse_statistic(std::string_view text) {
  if (text == "mean") return kMean;
  if (text == "max") return kLargest;
  double percentile = 0;
  const bool is_percentile = text.starts_with("p");
  const char* const end = text.data() + text.size();
  const auto [rest, error] =
      std::from_chars(text.data() + (is_percentile ? 1 : 0), end, percentile);
  if (!is_percentile || error != std::errc() || rest != end || !(percentile > 0) ||
      percentile > 100) {
    throw std::invalid_argument("found '" + shown(text) +
                                "'; expected mean, max or a percentile such as p99 or p99.9");
  }
  return percentile;
}

bool Slo::limits_each() const {
  const Slo none;
  return ttft < none.ttft || tpot < none.tpot || e2e < none.e2e;
}

double SloCheck::headroom() const {
  const double more = is_at_most ? limit : value;
  const double less = is_at_most ? value : limit;
  return less > 0 ? more / less : std::numeric_limits<double>::infinity();
}

std::vector<SloCheck> check_slo(const Slo& slo, std::span<const RequestRecord> records,
                                const ServingMetrics& metrics) {
  std::vector<SloCheck> checks;
  if (slo.limits_each()) {
    checks.push_back({.name = "attainment",
                      .value = metrics.slo_attainment,
                      .limit = slo.attainment,
                      .is_at_most = false});
  }
  std::array<std::vector<double>, kLatencyMetricNames.size()> values;
  for (const LatencyLimit& limit : slo.limits) {
    const auto metric = static_cast<std::size_t>(limit.metric);
    if (values[metric].empty()) values[metric] = sorted_values(limit.metric, records);
    checks.push_back(
        {.name = std::string(kLatencyMetricNames[metric]) + "_" + statistic_name(limit.percentile),
         .value = statistic(values[metric], limit.percentile),
         .limit = limit.limit.value()});
  }
  if (slo.goodput > 0) {
    checks.push_back({.name = "goodput",
                      .value = metrics.goodput_requests_per_s,
                      .limit = slo.goodput,
                      .is_at_most = false});
  }
  return checks;
}

}  // namespace orrery

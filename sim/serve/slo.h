#pragma once

// What a service is asked to keep: limits on latencies, of each request or of a percentile of all,
// and a rate of good requests.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

struct RequestRecord;
struct ServingMetrics;

enum class LatencyMetric : std::uint8_t { kTtft, kTpot, kE2e };
inline constexpr std::array<std::string_view, 3> kLatencyMetricNames{"ttft", "tpot", "e2e"};

// A statistic of all measured requests, and its largest value.
struct LatencyLimit {
  LatencyMetric metric = LatencyMetric::kTtft;
  double percentile = 99;  // (0, 100], nearest rank; 100: the largest; 0: the mean
  Seconds limit;
  bool operator==(const LatencyLimit&) const = default;
};
// "p99", "p99.9", "mean", "max".
std::string statistic_name(double percentile);
// Throws std::invalid_argument for another text.
double parse_statistic(std::string_view text);

struct Slo {
  // Of each request.
  Seconds ttft{1e300};
  Seconds tpot{1e300};
  Seconds e2e{1e300};
  // Share of requests that must meet these.
  double attainment = 0.99;
  // Of percentiles.
  std::vector<LatencyLimit> limits;
  // Requests per second that meet the limits of each request, at least; 0: not asked.
  double goodput = 0;

  [[nodiscard]] bool limits_each() const;
  [[nodiscard]] bool is_empty() const { return !limits_each() && limits.empty() && goodput == 0; }
};

// One limit and what became of it.
struct SloCheck {
  std::string name;  // "ttft_p99", "attainment", "goodput"
  double value = 0;  // seconds, share or requests per second
  double limit = 0;
  bool is_at_most = true;  // value must be at most the limit; else at least

  [[nodiscard]] bool is_met() const { return is_at_most ? value <= limit : value >= limit; }
  // How far inside the limit, as a factor: 1 at the limit, above 1 where it is met.
  [[nodiscard]] double headroom() const;
};

// All limits of `slo`, in the order of its members; of measured requests.
std::vector<SloCheck> check_slo(const Slo& slo, std::span<const RequestRecord> records,
                                const ServingMetrics& metrics);

}  // namespace orrery

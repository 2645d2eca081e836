#pragma once

// Lengths of prompts and outputs: fixed, uniform, from a list, or log-normal within limits such
// that the mean, spread or quantiles asked for are those of the lengths drawn.

#include <cstdint>
#include <vector>

#include "sim/serve/random.h"

namespace orrery {

enum class LengthKind : std::uint8_t { kFixed, kUniform, kLogNormal };

// Tokens of a prompt or an output, in [min, max].
struct LengthDistribution {
  LengthKind kind = LengthKind::kFixed;
  // kLogNormal: what was asked for, 0 where it was not; cv is standard deviation / mean. kFixed:
  // the length as `mean`.
  double mean = 0;
  double cv = 0;
  double p50 = 0;
  double p99 = 0;
  std::int64_t min = 1;
  std::int64_t max = 0;
  // kUniform: the lengths to draw from (before clamping) in place of all of [min, max]; may be
  // empty.
  std::vector<std::int64_t> values;
  // kLogNormal: lengths are exp(log_median + log_spread N(0, 1)), rounded and clamped.
  double log_median = 0;
  double log_spread = 0;
  bool operator==(const LengthDistribution&) const = default;
};

std::int64_t draw(const LengthDistribution& lengths, Random& random);

// Log-normal lengths. What lies beyond [min, max] is clamped, as an engine cuts what is too long
// for it, so median and spread are solved for such that the mean and coefficient of variation, or
// the mean and median, of the clamped and rounded lengths are those asked for. Quantiles are kept
// by clamping. A cv of 0 is the mean, rounded. Throw std::invalid_argument, with the range that can
// be had, when no log-normal with log_spread of at most 3 (p99 / p50 of 1,000) has them.
LengthDistribution lognormal_of_mean_cv(double mean, double cv, std::int64_t min, std::int64_t max);
LengthDistribution lognormal_of_mean_p50(double mean, double p50, std::int64_t min,
                                         std::int64_t max);
LengthDistribution lognormal_of_p50_p99(double p50, double p99, std::int64_t min, std::int64_t max);

// The part of log-normal lengths that were longer than `max` before clamping; 0 of other kinds.
double share_above_max(const LengthDistribution& lengths);

}  // namespace orrery

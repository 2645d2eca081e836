#include "kernels/harness/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace orrery {
namespace {

// To the nearest multiple of 2^exponent, ties to even.
double round_to(double value, int exponent) {
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

}  // namespace

double round_bf16(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  return round_to(value, std::ilogb(value) - 7);
}

std::vector<double> round_bf16(std::span<const double> values) {
  std::vector<double> rounded(values.size());
  std::ranges::transform(values, rounded.begin(), [](double value) { return round_bf16(value); });
  return rounded;
}

double round_fp8(double value) {
  if (value == 0 || std::isnan(value)) return value;
  constexpr double kMost = 448;
  constexpr int kLeastExponent = -6;
  const double clamped = std::clamp(value, -kMost, kMost);
  return round_to(clamped, std::max(std::ilogb(clamped), kLeastExponent) - 3);
}

}  // namespace orrery

#include "sim/serve/fast_forward.h"

#include <algorithm>
#include <cmath>

namespace orrery {

Seconds fast_forward_duration(const FastForward& time, std::int64_t num_steps) {
  const auto n = static_cast<double>(num_steps);
  return time.first * n + time.slope * (n * (n - 1) / 2);
}

std::int64_t steps_to_reach(const FastForward& time, Seconds elapsed) {
  // slope/2 n^2 + (first - slope/2) n = elapsed
  const double a = time.slope.value() / 2;
  const double b = time.first.value() - a;
  const double c = elapsed.value();
  // Stable for a -> 0: n = 2c / (b + sqrt(b^2 + 4 a c)).
  const double root = std::sqrt(std::max(b * b + 4 * a * c, 0.0));
  const double guess = c > 0 ? 2 * c / (b + root) : 1;
  auto steps = static_cast<std::int64_t>(
      std::clamp(std::ceil(guess), 1.0, static_cast<double>(time.num_steps)));
  while (steps > 1 && fast_forward_duration(time, steps - 1) >= elapsed) --steps;
  while (steps < time.num_steps && fast_forward_duration(time, steps) < elapsed) ++steps;
  return steps;
}

BasisSeconds sum(const BasisSeconds& a, const BasisSeconds& b) {
  return {.measured = a.measured + b.measured,
          .interpolated = a.interpolated + b.interpolated,
          .borrowed = a.borrowed + b.borrowed,
          .roofline = a.roofline + b.roofline};
}

BasisSeconds scaled(const BasisSeconds& basis, double factor) {
  return {.measured = basis.measured * factor,
          .interpolated = basis.interpolated * factor,
          .borrowed = basis.borrowed * factor,
          .roofline = basis.roofline * factor};
}

BasisSeconds mix(const BasisSeconds& a, const BasisSeconds& b, double share) {
  return sum(scaled(a, 1 - share), scaled(b, share));
}

}  // namespace orrery

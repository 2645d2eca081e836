#pragma once

// Arithmetic on step times: the length of a part of a fast-forward, and shares of time by basis.

#include <cstdint>
#include <limits>

#include "sim/serve/step_backend.h"
#include "sim/units/units.h"

namespace orrery {

constexpr Seconds kNever(std::numeric_limits<double>::infinity());

// Time of the first `num_steps` steps of a fast-forward: n first + slope n (n - 1) / 2.
Seconds fast_forward_duration(const FastForward& time, std::int64_t num_steps);

// Fewest steps, at least one, that take `elapsed` or longer; at most time.num_steps.
std::int64_t steps_to_reach(const FastForward& time, Seconds elapsed);

BasisSeconds sum(const BasisSeconds& a, const BasisSeconds& b);
BasisSeconds scaled(const BasisSeconds& basis, double factor);
// a at share 0, b at share 1, linear between.
BasisSeconds mix(const BasisSeconds& a, const BasisSeconds& b, double share);

}  // namespace orrery

#pragma once

// Quantiles of the standard normal distribution.

namespace orrery {

// x with P(N(0,1) <= x) = p, 0 < p < 1; relative error below 1e-9 (Acklam's rational approximation,
// one step of Halley's method on erfc).
double inverse_normal(double p);

}  // namespace orrery

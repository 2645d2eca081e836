#pragma once

// Rounding of doubles to the formats that kernels store, for references.

#include <span>
#include <vector>

namespace orrery {

// To the nearest bf16 (8 significant bits), ties to even; exponents as in double.
double round_bf16(double value);
std::vector<double> round_bf16(std::span<const double> values);
// To the nearest e4m3 (4 significant bits, subnormal below 2^-6, largest 448), ties to even; beyond
// 448 clamped.
double round_fp8(double value);

}  // namespace orrery

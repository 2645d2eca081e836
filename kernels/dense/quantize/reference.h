#pragma once

// Quantisation to fp8 in double.

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

// The largest |x| / 448 of each `group` elements of a row of `columns` (the last group of a row may
// be shorter). Throws std::invalid_argument when x is not whole rows.
std::vector<double> quantize_scales(std::span<const double> x, std::size_t columns,
                                    std::size_t group);

// What comes back: x / scale rounded to fp8, times scale; 0 where the scale is 0.
std::vector<double> quantize(std::span<const double> x, std::span<const double> scales,
                             std::size_t columns, std::size_t group);

// Values of `tensor` as they are stored.
Values rounded(Values values, const Tensor& tensor, Rounding rounding);

}  // namespace orrery::reference

#pragma once

// rms_norm in double.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// x / sqrt(mean(x^2) + epsilon) * weight by rows of x [tokens, hidden]; weight [hidden]. Throws
// std::invalid_argument when x is not whole rows of weight's length.
std::vector<double> rms_norm(std::span<const double> x, std::span<const double> weight,
                             double epsilon);

}  // namespace orrery::reference

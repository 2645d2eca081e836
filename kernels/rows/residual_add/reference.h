#pragma once

// residual_add in double.

#include <span>
#include <vector>

namespace orrery::reference {

// residual + x, element by element. Throws std::invalid_argument when the sizes differ.
std::vector<double> residual_add(std::span<const double> residual, std::span<const double> x);

}  // namespace orrery::reference

#pragma once

// add_rms_norm in double.

#include <span>
#include <vector>

namespace orrery::reference {

struct AddRmsNorm {
  std::vector<double> residual;  // the sums, rounded to bf16
  std::vector<double> y;         // their norm, not rounded
};

// Throws std::invalid_argument when sizes do not fit.
AddRmsNorm add_rms_norm(std::span<const double> residual, std::span<const double> x,
                        std::span<const double> weight, double epsilon);

}  // namespace orrery::reference

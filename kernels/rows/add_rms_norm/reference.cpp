#include "kernels/rows/add_rms_norm/reference.h"

#include "kernels/harness/rounding.h"
#include "kernels/rows/residual_add/reference.h"
#include "kernels/rows/rms_norm/reference.h"

namespace orrery::reference {

AddRmsNorm add_rms_norm(std::span<const double> residual, std::span<const double> x,
                        std::span<const double> weight, double epsilon) {
  AddRmsNorm result{.residual = round_bf16(residual_add(residual, x)), .y = {}};
  result.y = rms_norm(result.residual, weight, epsilon);
  return result;
}

}  // namespace orrery::reference

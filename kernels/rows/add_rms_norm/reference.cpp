#include "kernels/rows/add_rms_norm/reference.h"

#include <utility>

#include "kernels/binding/kernel_call.h"
#include "kernels/dense/quantize/reference.h"
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

Results add_rms_norm_reference(const KernelCall& call) {
  Values sum = rounded(residual_add(read(call, "residual"), read(call, "x")),
                       tensor_written(call, "sum"), call.rounding);
  Values normed = rms_norm(sum, read(call, "gain"), call.numbers.norm_epsilon);
  return {std::move(normed), std::move(sum)};
}

}  // namespace orrery::reference

#include "kernels/expert_gemm/expert_gemm.h"

namespace orrery {

void expert_gemm(const cuda::Stream& stream, const GemmPlan& plan, const ExpertRows& rows,
                 std::int64_t expert, const GemmOperands& operands) {
  const GemmShape& shape = plan.shape();
  const auto element = static_cast<std::int64_t>(bytes_per_element(shape.dtype));
  const auto part = [&](const void* all, std::int64_t elements) {
    return static_cast<const std::byte*>(all) + elements * element;
  };
  const bool is_scaled = operands.x_scale != nullptr;
  plan.launch(stream, {.x = part(operands.x, rows.first * shape.k),
                       .w = part(operands.w, expert * shape.n * shape.k),
                       .y = operands.y + rows.first * shape.n,
                       .x_scale = is_scaled ? operands.x_scale + rows.first : nullptr,
                       .w_scale = is_scaled ? operands.w_scale + expert * shape.n : nullptr});
}

}  // namespace orrery

#include "kernels/experts/expert_gemm/expert_gemm.h"

namespace orrery {

void expert_gemm(const cuda::Stream& stream, const GemmPlan& plan, const ExpertRows& rows,
                 std::int64_t expert, const GemmOperands& operands, float* scales) {
  const GemmShape& shape = plan.shape();
  const auto element = static_cast<std::int64_t>(bytes_per_element(shape.dtype));
  const auto part = [&](const void* all, std::int64_t elements) {
    return static_cast<const std::byte*>(all) + elements * element;
  };
  const bool is_scaled = operands.x_scale != nullptr;
  const float* x_scale = is_scaled ? operands.x_scale + rows.first : nullptr;
  constexpr std::int64_t kAligned = 4;  // floats
  if (is_scaled && rows.first % kAligned != 0 && !plan.choice().tile) {
    ORRERY_CUDA(cudaMemcpyAsync(scales, x_scale,
                                static_cast<std::size_t>(rows.count) * sizeof(float),
                                cudaMemcpyDeviceToDevice, stream.get()));
    x_scale = scales;
  }
  plan.launch(stream, {.x = part(operands.x, rows.first * shape.k),
                       .w = part(operands.w, expert * shape.n * shape.k),
                       .y = operands.y + rows.first * shape.n,
                       .x_scale = x_scale,
                       .w_scale = is_scaled ? operands.w_scale + expert * shape.n : nullptr});
}

}  // namespace orrery

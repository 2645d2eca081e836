#include <span>

#include "kernels/binding/bind_operands.h"
#include "kernels/dense/gemm/kept_plan.h"
#include "kernels/experts/expert_gemm/expert_gemm.h"

namespace orrery {

// reads x [rows, k], w [experts, n, k], counts [experts] (which a d2h_sync op has copied); writes
// the rows of one expert in y [rows, n]. A number of rows that is new takes a new plan, made when
// it is launched; no rows launch nothing.
Launch bind_expert_gemm(const BindContext& context) {
  const DType dtype = context.op.dtype;
  const std::int64_t n = dim(context.op.dims, "n");
  const std::int64_t k = dim(context.op.dims, "k");
  const std::int64_t expert = dim(context.op.dims, "expert");
  const auto element = static_cast<std::int64_t>(bytes_per_element(dtype));
  constexpr std::int64_t kAlignment = 16;
  require_taken(context, k * element % kAlignment == 0 && n * 2 % kAlignment == 0,
                "rows of x and y that are multiples of 16 bytes");
  const Operand x = operand(context, "x");
  const Operand w = operand(context, "w");
  const Operand counts = operand(context, "counts");
  const Operand y = result(context, "y");
  const std::int64_t rows = matrix_size(*x.tensor).rows;
  const std::int64_t experts = num_elements(*counts.tensor);
  require_taken(context, counts.host != nullptr, "counts that a d2h_sync op has copied");
  const std::span host(counts.host, static_cast<std::size_t>(experts));
  const bool is_fp8 = dtype == DType::kFp8;
  const GemmOperands operands{.x = x.data,
                              .w = w.data,
                              .y = typed<bf16>(y),
                              .x_scale = is_fp8 ? x.scales : nullptr,
                              .w_scale = is_fp8 ? w.scales : nullptr};
  BindResources& resources = context.resources;
  float* const scales = reinterpret_cast<float*>(
      resources.scratch("expert_gemm scales", static_cast<std::size_t>(rows) * sizeof(float)));
  return [=, &resources](const cuda::Stream& stream) {
    const ExpertRows own = expert_rows(host, expert, rows);
    if (own.count == 0) return;
    const GemmPlan* const plan = &kept_gemm_plan(
        resources,
        {.dtype = dtype, .m = own.count, .n = n, .k = k, .scaling = Fp8Scaling::kRowwise});
    expert_gemm(stream, *plan, own, expert, operands, scales);
  };
}

}  // namespace orrery

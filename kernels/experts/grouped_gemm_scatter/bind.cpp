#include "kernels/binding/bind_operands.h"
#include "kernels/experts/grouped_gemm/kept_plan.h"

namespace orrery {

// reads x, w, counts, row_token, row weights where there are, out; writes out. A token has one row
// at most where there is room for no more rows than tokens.
Launch bind_grouped_gemm_scatter(const BindContext& context) {
  const Operand out = result(context, "out");
  require_taken(context, operand(context, "base").tensor == out.tensor, "out in place");
  const Operand x = operand(context, "x");
  const Operand w = operand(context, "w");
  const Operand counts = operand(context, "counts");
  const DType dtype = context.op.dtype;
  const std::int64_t n = dim(context.op.dims, "n");
  const std::int64_t k = dim(context.op.dims, "k");
  const std::int64_t groups = dim(context.op.dims, "groups");
  const std::int64_t rows = matrix_size(*x.tensor).rows;
  const std::int64_t tokens = matrix_size(*out.tensor).rows;
  const bool has_weights = has_operand(context, "row_weight");
  const ScatterTarget target{
      .out = typed<bf16>(out),
      .row_token = typed<std::int32_t>(operand(context, "row_token")),
      .row_weight = has_weights ? typed<float>(operand(context, "row_weight")) : nullptr,
      .tokens_are_unique = rows == tokens};
  const bool is_fp8 = dtype == DType::kFp8;
  const GroupedGemmOperands operands{.x = x.data,
                                     .w = w.data,
                                     .counts = typed<std::int32_t>(counts),
                                     .x_scale = is_fp8 ? x.scales : nullptr,
                                     .w_scale = is_fp8 ? w.scales : nullptr,
                                     .scatter = target};
  const GroupedGemmPlan* const plan = &kept_grouped_gemm_plan(
      context, {.dtype = dtype, .max_rows = rows, .n = n, .k = k, .groups = groups},
      {.rows = dim(context.op.dims, "rows"), .active = dim(context.op.dims, "active")});
  return [plan, operands](const cuda::Stream& stream) { plan->launch(stream, operands); };
}

}  // namespace orrery

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/grouped_gemm/kept_plan.h"

namespace orrery {

// reads x, w, counts, row_token, row weights where there are, out; writes out. A token has one row
// at most where there is room for no more rows than tokens.
Launch bind_grouped_gemm_scatter(const BindContext& context) {
  require_dtype(context);
  const std::size_t num_reads = context.reads.size();
  require_taken(context, (num_reads == 5 || num_reads == 6) && context.writes.size() == 1,
                "x, w, counts, row_token, weights or none, and out, and writes out");
  const Operand& out = context.writes[0];
  require_taken(context, context.reads.back().tensor == out.tensor, "out in place");
  const DType dtype = context.op.dtype;
  const std::int64_t n = dim(context.op.dims, "n");
  const std::int64_t k = dim(context.op.dims, "k");
  const std::int64_t groups = dim(context.op.dims, "groups");
  const std::int64_t rows = matrix_size(*context.reads[0].tensor).rows;
  const std::int64_t tokens = matrix_size(*out.tensor).rows;
  const Operand x =
      require_operand(context, context.reads[0], {.what = "x", .dtype = dtype, .size = {rows, k}});
  const Operand w = require_operand(context, context.reads[1],
                                    {.what = "w", .dtype = dtype, .size = {groups * n, k}});
  const Operand counts = require_operand(
      context, context.reads[2], {.what = "counts", .dtype = DType::kInt32, .size = {1, groups}});
  const Operand row_token = require_operand(
      context, context.reads[3], {.what = "row_token", .dtype = DType::kInt32, .size = {1, rows}});
  const bool has_weights = num_reads == 6;
  if (has_weights) {
    require_operand(context, context.reads[4],
                    {.what = "row weights", .dtype = DType::kFp32, .size = {1, rows}});
  }
  require_operand(context, out, {.what = "out", .size = {tokens, n}});
  const ScatterTarget target{.out = typed<bf16>(out),
                             .row_token = typed<std::int32_t>(row_token),
                             .row_weight = has_weights ? typed<float>(context.reads[4]) : nullptr,
                             .tokens_are_unique = rows == tokens};
  const bool is_fp8 = dtype == DType::kFp8;
  const GroupedGemmOperands operands{.x = x.data,
                                     .w = w.data,
                                     .counts = typed<std::int32_t>(counts),
                                     .x_scale = is_fp8 ? x.scales : nullptr,
                                     .w_scale = is_fp8 ? w.scales : nullptr,
                                     .scatter = target};
  const GroupedGemmPlan* const plan = &kept_grouped_gemm_plan(
      context.resources, {.dtype = dtype, .max_rows = rows, .n = n, .k = k, .groups = groups},
      {.rows = dim(context.op.dims, "rows"), .active = dim(context.op.dims, "active")},
      context.counts_are_there);
  return [plan, operands](const cuda::Stream& stream) { plan->launch(stream, operands); };
}

}  // namespace orrery

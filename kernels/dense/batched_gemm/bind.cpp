#include <array>

#include "kernels/binding/bind_operands.h"
#include "kernels/dense/batched_gemm/batched_gemm.h"
#include "kernels/dense/gemm/gemm.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"

namespace orrery {
namespace {

const BatchedGemmPlan& kept_plan(BindResources& resources, const BatchedGemmShape& shape) {
  return resources.keep<BatchedGemmPlan>(shape, [&] {
    return BatchedGemmPlan(shape,
                           shape.dtype == DType::kFp8
                               ? resources.scratch("grouped_gemm", grouped_gemm_workspace_bytes())
                               : resources.scratch("gemm", kGemmWorkspaceBytes));
  });
}

// reads x [batch, m, k], w [batch, n, k]; writes y [batch, m, n]
Launch bind_matrices(const BindContext& context, BatchedGemmShape shape) {
  const DType dtype = shape.dtype;
  shape.is_by_matrix = true;
  const auto matrices = [&](const Operand& operand, const OperandRule& rule) {
    require_taken(context, operand.tensor->axes.size() == 3,
                  [&] { return "matrices of a batch, not " + operand.tensor->name; });
    return require_operand(context, operand, rule);
  };
  const Operand x = matrices(
      context.reads[0], {.what = "x", .dtype = dtype, .size = {shape.batch * shape.m, shape.k}});
  const Operand w = matrices(
      context.reads[1], {.what = "w", .dtype = dtype, .size = {shape.batch * shape.n, shape.k}});
  const Operand y =
      matrices(context.writes[0], {.what = "y", .size = {shape.batch * shape.m, shape.n}});
  const bool is_fp8 = dtype == DType::kFp8;
  const BatchedGemmOperands operands{.x = x.data,
                                     .w = w.data,
                                     .y = typed<bf16>(y),
                                     .x_scale = is_fp8 ? x.scales : nullptr,
                                     .w_scale = is_fp8 ? w.scales : nullptr};
  const BatchedGemmPlan& plan = kept_plan(context.resources, shape);
  return [&plan, operands](const cuda::Stream& stream) { plan.launch(stream, operands); };
}

// reads rows of heads that begin with x, the last m of them; w [batch rows of a head, columns], as
// wide as y (then it multiplies from the other side) or as x; writes y [m, batch, n]
Launch bind_heads(const BindContext& context, BatchedGemmShape shape) {
  const MatrixSize x_size = matrix_size(*context.reads[0].tensor);
  const MatrixSize w_size = matrix_size(*context.reads[1].tensor);
  const std::int64_t head = x_size.columns / shape.batch;
  require_taken(context, head * shape.batch == x_size.columns && head >= shape.k,
                "rows of its heads as x");
  require_taken(context, shape.n != shape.k, "heads of other sizes in x and y");
  shape.w_is_transposed = w_size == MatrixSize{shape.batch * shape.k, shape.n};
  shape.x_head_stride = head;
  const MatrixSize expected{shape.batch * (shape.w_is_transposed ? shape.k : shape.n),
                            shape.w_is_transposed ? shape.n : shape.k};
  // Rows of decodes follow those of the step's prefill.
  std::int64_t first_row = 0;
  if (x_size.rows > shape.m) {
    for (const PrefillSequence& sequence : context.tables.prefill) first_row += sequence.query;
  }
  const Operand x = require_operand(
      context, context.reads[0],
      {.what = "x", .size = {first_row + shape.m, x_size.columns}, .more_rows = true});
  const Operand w = require_operand(context, context.reads[1], {.what = "w", .size = expected});
  const Operand y = require_operand(context, context.writes[0],
                                    {.what = "y", .size = {shape.m, shape.batch * shape.n}});
  const BatchedGemmOperands operands{
      .x = typed<bf16>(x) + first_row * x_size.columns, .w = typed<bf16>(w), .y = typed<bf16>(y)};
  const BatchedGemmPlan& plan = kept_plan(context.resources, shape);
  return [&plan, operands](const cuda::Stream& stream) { plan.launch(stream, operands); };
}

}  // namespace

// Matrices of a batch where x has three axes, else heads of rows, which are bf16 alone.
Launch bind_batched_gemm(const BindContext& context) {
  require_dtype(context);
  require_operands(context, 2, 1);
  const BatchedGemmShape shape{.dtype = context.op.dtype,
                               .batch = dim(context.op.dims, "batch"),
                               .m = dim(context.op.dims, "m"),
                               .n = dim(context.op.dims, "n"),
                               .k = dim(context.op.dims, "k")};
  if (context.reads[0].tensor->axes.size() == 3) return bind_matrices(context, shape);
  require_dtype(context, std::array{DType::kBf16});
  return bind_heads(context, shape);
}

}  // namespace orrery

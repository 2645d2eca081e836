#include <array>

#include "kernels/batched_gemm/batched_gemm.h"
#include "kernels/execute/bind_operands.h"

namespace orrery {
namespace {

// reads x [batch, m, k], w [batch, n, k]; writes y [batch, m, n]
Launch bind_matrices(const BindContext& context, BatchedGemmShape shape) {
  shape.is_by_matrix = true;
  const auto matrices = [&](const Operand& operand, const char* what, std::int64_t rows,
                            std::int64_t columns) {
    require_taken(context, operand.tensor->axes.size() == 3,
                  "matrices of a batch, not " + operand.tensor->name);
    return typed<bf16>(
        require_operand(context, operand, {.what = what, .size = {shape.batch * rows, columns}}));
  };
  const BatchedGemmOperands operands{.x = matrices(context.reads[0], "x", shape.m, shape.k),
                                     .w = matrices(context.reads[1], "w", shape.n, shape.k),
                                     .y = matrices(context.writes[0], "y", shape.m, shape.n)};
  const BatchedGemmPlan& plan = context.resources.batched_gemm(shape);
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
  const BatchedGemmPlan& plan = context.resources.batched_gemm(shape);
  return [&plan, operands](const cuda::Stream& stream) { plan.launch(stream, operands); };
}

}  // namespace

// Matrices of a batch where x has three axes, else heads of rows.
Launch bind_batched_gemm(const BindContext& context) {
  require_dtype(context, std::array{DType::kBf16});
  require_operands(context, 2, 1);
  const BatchedGemmShape shape{.batch = dim(context.op.dims, "batch"),
                               .m = dim(context.op.dims, "m"),
                               .n = dim(context.op.dims, "n"),
                               .k = dim(context.op.dims, "k")};
  return context.reads[0].tensor->axes.size() == 3 ? bind_matrices(context, shape)
                                                   : bind_heads(context, shape);
}

}  // namespace orrery

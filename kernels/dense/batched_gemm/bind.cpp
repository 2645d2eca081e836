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
  shape.is_by_matrix = true;
  const auto matrices = [&](const Operand& tensor) {
    require_taken(context, tensor.tensor->axes.size() == 3,
                  [&] { return "matrices of a batch, not " + tensor.tensor->name; });
    return tensor;
  };
  const Operand x = operand(context, "x");
  const Operand w = matrices(operand(context, "w"));
  const Operand y = matrices(result(context, "y"));
  const bool is_fp8 = shape.dtype == DType::kFp8;
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
  const Operand x = operand(context, "x");
  const Operand w = operand(context, "w");
  const Operand y = result(context, "y");
  const MatrixSize x_size = matrix_size(*x.tensor);
  const MatrixSize w_size = matrix_size(*w.tensor);
  const std::int64_t head = x_size.columns / shape.batch;
  require_taken(context, head * shape.batch == x_size.columns && head >= shape.k,
                "rows of its heads as x");
  require_taken(context, shape.n != shape.k, "heads of other sizes in x and y");
  shape.w_is_transposed = w_size == MatrixSize{shape.batch * shape.k, shape.n};
  shape.x_head_stride = head;
  const MatrixSize expected{shape.batch * (shape.w_is_transposed ? shape.k : shape.n),
                            shape.w_is_transposed ? shape.n : shape.k};
  // Rows of decodes follow those of the step's prefill.
  const std::int64_t first_row = x_size.rows > shape.m ? context.tables.prefill_rows : 0;
  require_rows(context, x, first_row + shape.m);
  require_taken(context, w_size == expected && y.tensor->axes.size() == 2,
                "a matrix for each head as w, and rows of heads as y");
  const BatchedGemmOperands operands{
      .x = typed<bf16>(x) + first_row * x_size.columns, .w = typed<bf16>(w), .y = typed<bf16>(y)};
  const BatchedGemmPlan& plan = kept_plan(context.resources, shape);
  return [&plan, operands](const cuda::Stream& stream) { plan.launch(stream, operands); };
}

}  // namespace

// Matrices of a batch where x has three axes, else heads of rows, which are bf16 alone.
Launch bind_batched_gemm(const BindContext& context) {
  const BatchedGemmShape shape{.dtype = context.op.dtype,
                               .batch = dim(context.op.dims, "batch"),
                               .m = dim(context.op.dims, "m"),
                               .n = dim(context.op.dims, "n"),
                               .k = dim(context.op.dims, "k")};
  if (operand(context, "x").tensor->axes.size() == 3) return bind_matrices(context, shape);
  require_bf16(context);
  return bind_heads(context, shape);
}

}  // namespace orrery

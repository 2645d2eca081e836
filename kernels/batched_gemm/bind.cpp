#include <array>

#include "kernels/batched_gemm/batched_gemm.h"
#include "kernels/execute/bind_operands.h"

namespace orrery {

// reads x [batch, m, k], w [batch, n, k]; writes y [batch, m, n]
Launch bind_batched_gemm(const BindContext& context) {
  require_dtype(context, std::array{DType::kBf16});
  require_operands(context, 2, 1);
  const BatchedGemmShape shape{.batch = dim(context.op.dims, "batch"),
                               .m = dim(context.op.dims, "m"),
                               .n = dim(context.op.dims, "n"),
                               .k = dim(context.op.dims, "k"),
                               .is_by_matrix = true};
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

}  // namespace orrery

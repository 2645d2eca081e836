#include <array>

#include "kernels/batched_gemm/batched_gemm.h"
#include "kernels/execute/bind_operands.h"

namespace orrery {

// reads x [batch, m, k], w [batch, n, k]; writes y [batch, m, n]
Launch bind_batched_gemm(const BindContext& context) {
  require_dtype(context, std::array{DType::kBf16, DType::kFp8});
  require_operands(context, 2, 1);
  const DType dtype = context.op.dtype;
  const BatchedGemmShape shape{.dtype = dtype,
                               .batch = dim(context.op.dims, "batch"),
                               .m = dim(context.op.dims, "m"),
                               .n = dim(context.op.dims, "n"),
                               .k = dim(context.op.dims, "k"),
                               .is_by_matrix = true};
  const auto matrices = [&](const Operand& operand, const OperandRule& rule) {
    require_taken(context, operand.tensor->axes.size() == 3,
                  "matrices of a batch, not " + operand.tensor->name);
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
  const BatchedGemmPlan& plan = context.resources.batched_gemm(shape);
  return [&plan, operands](const cuda::Stream& stream) { plan.launch(stream, operands); };
}

}  // namespace orrery

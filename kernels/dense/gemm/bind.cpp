#include "kernels/binding/bind_operands.h"
#include "kernels/dense/gemm/kept_plan.h"
#include "kernels/rows/embedding/input_rows.h"

namespace orrery {

const GemmPlan& kept_gemm_plan(BindResources& resources, const GemmShape& shape) {
  return resources.keep<GemmPlan>(shape, [&] {
    return GemmPlan(shape, {.overlap = resources.overlaps_weights(),
                            .workspace = resources.scratch("gemm", kGemmWorkspaceBytes)});
  });
}

// reads x (one or several parts), w, a bias where there is one; writes y
Launch bind_gemm(const BindContext& context) {
  const GemmShape shape = gemm_shape(context.op, has_operand(context, "bias"));
  const InputRows x(context, "x", {shape.m, shape.k});
  const Operand w = operand(context, "w");
  const Operand y = result(context, "y");
  const bf16* const bias = shape.has_bias ? typed<const bf16>(operand(context, "bias")) : nullptr;
  const GemmPlan& plan = kept_gemm_plan(context.resources, shape);
  const bool is_fp8 = shape.dtype == DType::kFp8;
  const GemmOperands operands{.x = x.data(),
                              .w = w.data,
                              .y = typed<bf16>(y),
                              .x_scale = is_fp8 ? x.scales() : nullptr,
                              .w_scale = is_fp8 ? w.scales : nullptr,
                              .bias = bias};
  return [&plan, x, operands](const cuda::Stream& stream) {
    x.gather(stream);
    plan.launch(stream, operands);
  };
}

}  // namespace orrery

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

// reads x (one or several parts), w; writes y
Launch bind_gemm(const BindContext& context) {
  require_dtype(context);
  require_taken(context, context.reads.size() >= 2 && context.writes.size() == 1,
                "x and w and writes y");
  const Operand& w = context.reads.back();
  require_taken(context, w.tensor->axes.size() > 1,
                [&] { return "no bias (" + w.tensor->name + ")"; });
  const DType dtype = context.op.dtype;
  const GemmShape shape = gemm_shape(context.op);
  require_operand(context, w, {.what = "w", .dtype = dtype, .size = {shape.n, shape.k}});
  const InputRows x(context, context.reads.first(context.reads.size() - 1), dtype,
                    {shape.m, shape.k});
  const Operand y = require_operand(context, context.writes[0],
                                    {.what = "y", .size = {shape.m, shape.n}, .more_rows = true});
  const GemmPlan& plan = kept_gemm_plan(context.resources, shape);
  const bool is_fp8 = dtype == DType::kFp8;
  const GemmOperands operands{.x = x.data(),
                              .w = w.data,
                              .y = typed<bf16>(y),
                              .x_scale = is_fp8 ? x.scales() : nullptr,
                              .w_scale = is_fp8 ? w.scales : nullptr};
  return [&plan, x, operands](const cuda::Stream& stream) {
    x.gather(stream);
    plan.launch(stream, operands);
  };
}

}  // namespace orrery

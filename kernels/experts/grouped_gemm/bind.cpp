#include <tuple>

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/grouped_gemm/kept_plan.h"

namespace orrery {

const GroupedGemmPlan& kept_grouped_gemm_plan(const BindContext& context,
                                              const GroupedGemmShape& shape,
                                              const GroupedGemmLoad& load) {
  BindResources& resources = context.resources;
  const std::tuple key(shape, load, context.counts_are_there, context.op.free_sms);
  return resources.keep<GroupedGemmPlan>(key, [&] {
    const bool overlaps = resources.overlaps_weights();
    return GroupedGemmPlan(
        shape, load,
        {.programmatic = overlaps,
         .overlap = overlaps && context.counts_are_there,
         .workspace = resources.scratch("grouped_gemm", grouped_gemm_workspace_bytes()),
         .free_sms = context.op.free_sms});
  });
}

// reads x, w, counts; writes y
Launch bind_grouped_gemm(const BindContext& context) {
  const DType dtype = context.op.dtype;
  const Dims& dims = context.op.dims;
  const Operand x = operand(context, "x");
  const Operand w = operand(context, "w");
  const Operand counts = operand(context, "counts");
  const Operand y = result(context, "y");
  const GroupedGemmShape shape{.dtype = dtype,
                               .max_rows = matrix_size(*x.tensor).rows,
                               .n = dim(dims, "n"),
                               .k = dim(dims, "k"),
                               .groups = dim(dims, "groups")};
  const GroupedGemmPlan* const plan = &kept_grouped_gemm_plan(
      context, shape, {.rows = dim(dims, "rows"), .active = dim(dims, "active")});
  const bool is_fp8 = dtype == DType::kFp8;
  const GroupedGemmOperands operands{.x = x.data,
                                     .w = w.data,
                                     .counts = typed<std::int32_t>(counts),
                                     .y = y.data,
                                     .x_scale = is_fp8 ? x.scales : nullptr,
                                     .w_scale = is_fp8 ? w.scales : nullptr};
  return [plan, operands](const cuda::Stream& stream) { plan->launch(stream, operands); };
}

}  // namespace orrery

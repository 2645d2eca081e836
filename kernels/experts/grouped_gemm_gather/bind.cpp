#include "kernels/binding/bind_operands.h"
#include "kernels/experts/grouped_gemm_gather/grouped_gemm_gather.h"

namespace orrery {

// reads x, w, counts, row_token and, where rows are weighed, row_weight; writes y
Launch bind_grouped_gemm_gather(const BindContext& context) {
  const Dims& dims = context.op.dims;
  const Operand x = operand(context, "x");
  const Operand y = result(context, "y");
  const GroupedGemmShape shape{.dtype = context.op.dtype,
                               .max_rows = matrix_size(*y.tensor).rows,
                               .n = dim(dims, "n"),
                               .k = dim(dims, "k"),
                               .groups = dim(dims, "groups")};
  require_gathered_gemm_shape(shape);
  const bool has_weights = has_operand(context, "row_weight");
  const GatheredGemmOperands operands{
      .x = typed<bf16>(x),
      .tokens = matrix_size(*x.tensor).rows,
      .row_token = typed<std::int32_t>(operand(context, "row_token")),
      .row_weight = has_weights ? typed<float>(operand(context, "row_weight")) : nullptr,
      .w = typed<bf16>(operand(context, "w")),
      .counts = typed<std::int32_t>(operand(context, "counts")),
      .y = typed<bf16>(y)};
  const TiledChoice tile =
      choose_tile(shape, {.rows = dim(dims, "rows"), .active = dim(dims, "active")});
  const GatheredGemmOptions options{.programmatic = context.resources.overlaps_weights(),
                                    .free_sms = context.op.free_sms};
  return [=](const cuda::Stream& stream) {
    grouped_gemm_gather(stream, shape, tile, operands, options);
  };
}

}  // namespace orrery

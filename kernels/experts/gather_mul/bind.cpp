#include "kernels/binding/bind_operands.h"
#include "kernels/experts/gather_mul/gather_mul.h"

namespace orrery {

// reads x, row_token, num_rows [1] (padded: counts [experts]) and, where rows are weighed,
// row_weight; writes xs [rows, hidden] (padded: [experts, capacity, hidden])
Launch bind_gather_mul(const BindContext& context) {
  require_dtype(context);
  const bool is_weighed = context.reads.size() > 3;
  require_operands(context, is_weighed ? 4 : 3, 1);
  const DType dtype = context.op.dtype;
  const std::vector<Axis>& axes = context.writes[0].tensor->axes;
  const bool is_padded = axes.size() == 3;
  GatheredTokens from{.hidden = dim(context.op.dims, "hidden")};
  from.tokens = matrix_size(*context.reads[0].tensor).rows;
  from.rows = num_elements(*context.reads[1].tensor);
  if (is_padded) {
    from.experts = axes[0].size;
    from.capacity = axes[1].size;
  }
  const auto vector = [&](std::size_t i, const char* what, DType type, std::int64_t size) {
    return require_operand(context, context.reads[i],
                           {.what = what, .dtype = type, .size = {1, size}});
  };
  from.x = typed<bf16>(require_operand(context, context.reads[0],
                                       {.what = "x", .size = {from.tokens, from.hidden}}));
  from.row_token = typed<std::int32_t>(vector(1, "row_token", DType::kInt32, from.rows));
  if (is_padded) {
    from.counts = typed<std::int32_t>(vector(2, "counts", DType::kInt32, from.experts));
  } else {
    from.num_rows = typed<std::int32_t>(vector(2, "num_rows", DType::kInt32, 1));
  }
  if (is_weighed) from.row_weight = typed<float>(vector(3, "row_weight", DType::kFp32, from.rows));
  const Operand xs = require_operand(
      context, context.writes[0],
      {.what = "xs",
       .dtype = dtype,
       .size = {is_padded ? from.experts * from.capacity : from.rows, from.hidden}});
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      gather_mul_fp8(stream, from, typed<fp8>(xs), xs.scales);
    } else {
      gather_mul(stream, from, typed<bf16>(xs));
    }
  };
}

}  // namespace orrery

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/gather_mul/gather_mul.h"

namespace orrery {

// reads x, row_token, num_rows [1] (padded: counts [experts]) and, where rows are weighed,
// row_weight; writes xs [rows, hidden] (padded: [experts, capacity, hidden])
Launch bind_gather_mul(const BindContext& context) {
  const DType dtype = context.op.dtype;
  const Operand x = operand(context, "x");
  const Operand row_token = operand(context, "row_token");
  const Operand counts = operand(context, "counts");
  const Operand xs = result(context, "xs");
  const std::vector<Axis>& axes = xs.tensor->axes;
  const bool is_padded = axes.size() == 3;
  GatheredTokens from{.hidden = dim(context.op.dims, "hidden")};
  from.tokens = matrix_size(*x.tensor).rows;
  from.rows = num_elements(*row_token.tensor);
  if (is_padded) {
    from.experts = axes[0].size;
    from.capacity = axes[1].size;
  }
  from.x = typed<bf16>(x);
  from.row_token = typed<std::int32_t>(row_token);
  const std::int64_t num_counts = is_padded ? from.experts : 1;
  require_taken(context, num_elements(*counts.tensor) == num_counts,
                [&] { return std::to_string(num_counts) + " counts"; });
  (is_padded ? from.counts : from.num_rows) = typed<std::int32_t>(counts);
  if (has_operand(context, "row_weight")) {
    from.row_weight = typed<float>(operand(context, "row_weight"));
  }
  return [=](const cuda::Stream& stream) {
    if (dtype == DType::kFp8) {
      gather_mul_fp8(stream, from, typed<fp8>(xs), xs.scales);
    } else {
      gather_mul(stream, from, typed<bf16>(xs));
    }
  };
}

}  // namespace orrery

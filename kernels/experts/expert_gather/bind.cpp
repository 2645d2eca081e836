#include <span>

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/expert_gather/expert_gather.h"

namespace orrery {

// reads x, row_token, counts [experts] (which a d2h_sync op has copied) and, where rows are
// weighed, row_weight; writes the rows of one expert in xs
Launch bind_expert_gather(const BindContext& context) {
  const DType dtype = context.op.dtype;
  const std::int64_t expert = dim(context.op.dims, "expert");
  GatheredTokens from{.hidden = dim(context.op.dims, "hidden")};
  const Operand x = operand(context, "x");
  const Operand row_token = operand(context, "row_token");
  const Operand counts = operand(context, "counts");
  const Operand xs = result(context, "xs");
  from.tokens = matrix_size(*x.tensor).rows;
  from.rows = num_elements(*row_token.tensor);
  from.x = typed<bf16>(x);
  from.row_token = typed<std::int32_t>(row_token);
  const std::int64_t experts = num_elements(*counts.tensor);
  require_taken(context, counts.host != nullptr, "counts that a d2h_sync op has copied");
  if (has_operand(context, "row_weight")) {
    from.row_weight = typed<float>(operand(context, "row_weight"));
  }
  const std::span host(counts.host, static_cast<std::size_t>(experts));
  return [=](const cuda::Stream& stream) {
    const ExpertRows rows = expert_rows(host, expert, from.rows);
    if (dtype == DType::kFp8) {
      expert_gather_fp8(stream, from, rows, typed<fp8>(xs), xs.scales);
    } else {
      expert_gather(stream, from, rows, typed<bf16>(xs));
    }
  };
}

}  // namespace orrery

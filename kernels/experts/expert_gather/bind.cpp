#include <span>

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/expert_gather/expert_gather.h"

namespace orrery {

// reads x, row_token, counts [experts] (which a d2h_sync op has copied) and, where rows are
// weighed, row_weight; writes the rows of one expert in xs
Launch bind_expert_gather(const BindContext& context) {
  require_dtype(context);
  const bool is_weighed = context.reads.size() > 3;
  require_operands(context, is_weighed ? 4 : 3, 1);
  const DType dtype = context.op.dtype;
  const std::int64_t expert = dim(context.op.dims, "expert");
  GatheredTokens from{.hidden = dim(context.op.dims, "hidden")};
  from.tokens = matrix_size(*context.reads[0].tensor).rows;
  from.rows = num_elements(*context.reads[1].tensor);
  const auto vector = [&](std::size_t i, const char* what, DType type, std::int64_t size) {
    return require_operand(context, context.reads[i],
                           {.what = what, .dtype = type, .size = {1, size}});
  };
  from.x = typed<bf16>(require_operand(context, context.reads[0],
                                       {.what = "x", .size = {from.tokens, from.hidden}}));
  from.row_token = typed<std::int32_t>(vector(1, "row_token", DType::kInt32, from.rows));
  const std::int64_t experts = num_elements(*context.reads[2].tensor);
  const Operand counts = vector(2, "counts", DType::kInt32, experts);
  require_taken(context, counts.host != nullptr, "counts that a d2h_sync op has copied");
  if (is_weighed) from.row_weight = typed<float>(vector(3, "row_weight", DType::kFp32, from.rows));
  const Operand xs = require_operand(
      context, context.writes[0], {.what = "xs", .dtype = dtype, .size = {from.rows, from.hidden}});
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

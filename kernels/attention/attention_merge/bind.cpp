#include "kernels/attention/attention_merge/attention_merge.h"
#include "kernels/binding/bind_operands.h"

namespace orrery {

// reads results over parts of the keys, then their log-sum-exps, each one tensor or one for each
// part; writes out
Launch bind_attention_merge(const BindContext& context) {
  require_bf16(context);
  const Dims& dims = context.op.dims;
  const AttentionMergeShape shape{.parts = dim(dims, "parts"),
                                  .tokens = dim(dims, "tokens"),
                                  .heads = dim(dims, "heads"),
                                  .head_dim = dim(dims, "head_dim")};
  const std::span<const Operand> x = parts(context, "parts");
  const std::span<const Operand> lse = parts(context, "lse");
  const auto num_tensors = static_cast<std::int64_t>(x.size());
  require_taken(context,
                x.size() == lse.size() && (num_tensors == 1 || num_tensors == shape.parts) &&
                    shape.parts <= kMostMergedParts,
                "one tensor, or one for each part, of at most 32 parts");
  const std::int64_t rows = shape.parts / num_tensors * shape.tokens;
  for (std::size_t i = 0; i < x.size(); ++i) {
    require_rows(context, x[i], rows);
    require_columns(context, x[i], shape.heads * shape.head_dim);
    require_rows(context, lse[i], rows);
    require_columns(context, lse[i], shape.heads);
  }
  const Operand out = result(context, "out");
  require_rows(context, out, shape.tokens);
  require_columns(context, out, shape.heads * shape.head_dim);
  MergedParts merged = parts_in_order(typed<bf16>(x[0]), typed<float>(lse[0]), shape);
  for (std::size_t i = 1; i < x.size(); ++i) {
    merged.x[i] = typed<bf16>(x[i]);
    merged.lse[i] = typed<float>(lse[i]);
  }
  return
      [=](const cuda::Stream& stream) { attention_merge(stream, merged, shape, typed<bf16>(out)); };
}

}  // namespace orrery

#include "kernels/attention/attention_merge/attention_merge.h"
#include "kernels/binding/bind_operands.h"

namespace orrery {

// reads results over parts of the keys and their log-sum-exps, each one tensor; writes out
Launch bind_attention_merge(const BindContext& context) {
  require_bf16(context);
  const Dims& dims = context.op.dims;
  const AttentionMergeShape shape{.parts = dim(dims, "parts"),
                                  .tokens = dim(dims, "tokens"),
                                  .heads = dim(dims, "heads"),
                                  .head_dim = dim(dims, "head_dim")};
  require_taken(context, parts(context, "parts").size() == 1 && parts(context, "lse").size() == 1,
                "all parts in one tensor: cp_prefill all_gather");
  const Operand x = operand(context, "parts");
  const Operand lse = operand(context, "lse");
  const Operand out = result(context, "out");
  require_rows(context, x, shape.parts * shape.tokens);
  require_columns(context, x, shape.heads * shape.head_dim);
  require_rows(context, lse, shape.parts * shape.tokens);
  require_columns(context, lse, shape.heads);
  require_rows(context, out, shape.tokens);
  require_columns(context, out, shape.heads * shape.head_dim);
  return [=](const cuda::Stream& stream) {
    attention_merge(stream, typed<bf16>(x), typed<float>(lse), shape, typed<bf16>(out));
  };
}

}  // namespace orrery

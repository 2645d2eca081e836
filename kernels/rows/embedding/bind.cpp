#include "kernels/binding/bind_operands.h"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {

// reads token ids (of the step's tables), table; writes y
Launch bind_embedding(const BindContext& context) {
  require_dtype(context);
  require_operands(context, 2, 1);
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const std::int64_t vocab = dim(context.op.dims, "vocab");
  const Operand table =
      require_operand(context, context.reads[1], {.what = "table", .size = {vocab, hidden}});
  const Operand y =
      require_operand(context, context.writes[0], {.what = "y", .size = {tokens, hidden}});
  const std::int32_t* const ids = context.tables.token_ids;
  return [=](const cuda::Stream& stream) {
    embedding(stream, ids, typed<bf16>(table), typed<bf16>(y), tokens, hidden, vocab);
  };
}

}  // namespace orrery

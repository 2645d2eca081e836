#include "kernels/binding/bind_operands.h"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {

// reads token ids (of the step's tables), table; writes y
Launch bind_embedding(const BindContext& context) {
  const std::int64_t tokens = dim(context.op.dims, "tokens");
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const std::int64_t vocab = dim(context.op.dims, "vocab");
  const Operand table = operand(context, "table");
  const Operand y = result(context, "y");
  const std::int32_t* const ids = context.tables.token_ids;
  return [=](const cuda::Stream& stream) {
    embedding(stream, ids, typed<bf16>(table), typed<bf16>(y), tokens, hidden, vocab);
  };
}

}  // namespace orrery

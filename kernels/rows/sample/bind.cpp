#include "kernels/binding/bind_operands.h"
#include "kernels/rows/sample/sample.h"

namespace orrery {

// reads logits; writes the id of the largest of each row
Launch bind_sample(const BindContext& context) {
  const std::int64_t seqs = dim(context.op.dims, "seqs");
  const std::int64_t vocab = dim(context.op.dims, "vocab");
  const Operand logits = operand(context, "logits");
  const Operand ids = result(context, "ids");
  return [=](const cuda::Stream& stream) {
    sample_argmax(stream, typed<bf16>(logits), typed<std::int32_t>(ids), seqs, vocab);
  };
}

}  // namespace orrery

#include "kernels/binding/bind_operands.h"
#include "kernels/rows/sample/sample.h"

namespace orrery {

// reads logits; writes the id of the largest of each row
Launch bind_sample(const BindContext& context) {
  require_dtype(context);
  require_operands(context, 1, 1);
  const std::int64_t seqs = dim(context.op.dims, "seqs");
  const std::int64_t vocab = dim(context.op.dims, "vocab");
  const Operand logits =
      require_operand(context, context.reads[0], {.what = "logits", .size = {seqs, vocab}});
  const Operand ids = require_operand(context, context.writes[0],
                                      {.what = "ids", .dtype = DType::kInt32, .size = {1, seqs}});
  return [=](const cuda::Stream& stream) {
    sample_argmax(stream, typed<bf16>(logits), typed<std::int32_t>(ids), seqs, vocab);
  };
}

}  // namespace orrery

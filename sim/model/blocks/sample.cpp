#include "sim/model/blocks/blocks.h"

namespace orrery {

void lower_sample(Lowering& step, TensorId logits) {
  const AxisRef rows{axis::kSeqs, step.step.seqs};
  const TensorId next = step.tensor("next_tokens", DType::kInt32, TensorRole::kOutput, {rows});
  step.kernel("sample", "sample", DType::kBf16,
              {{"seqs", rows.size, rows.name}, {"vocab", step.model.vocab_size, axis::kVocab}},
              {logits}, {next});
}

}  // namespace orrery

#include "sim/model/blocks/blocks.h"

namespace orrery {

// The final norm runs over all tokens; logits are computed only for the rows that are sampled.
void lower_lm_head(Lowering& step) {
  const TensorId normed = step.sum_norm("final_norm", false);
  if (step.step.seqs == 0) return;  // no chunk ends its prompt in this step
  const AxisRef rows{axis::kSeqs, step.step.seqs};
  const AxisRef vocab{axis::kVocab, step.model.vocab_size};
  const DType dtype =
      step.model.tie_word_embeddings ? DType::kBf16 : step.options.precision.lm_head;
  TensorId input = normed;
  if (dtype != DType::kBf16) {
    input = step.quantized("lm_head_quant", {normed}, rows, step.hidden_axis()).front();
  }
  const TensorId weights = step.model.tie_word_embeddings
                               ? step.embedding
                               : step.weight("lm_head.weight", dtype, {vocab, step.hidden_axis()});
  const TensorId logits = step.activation("logits", {rows, vocab});
  step.kernel("lm_head", "gemm", dtype,
              {{"m", rows.size, rows.name},
               {"n", vocab.size, vocab.name},
               {"k", step.model.hidden_size, axis::kHidden}},
              {input, weights}, {logits});
  if (step.model.scales_logits) {
    step.kernel("logits_scale", "pointwise", DType::kBf16,
                {{"tokens", rows.size, rows.name}, {"width", vocab.size, vocab.name}}, {logits},
                {logits});
  }
  lower_sample(step, logits);
}

}  // namespace orrery

#include "sim/model/blocks/blocks.h"

namespace orrery {

void lower_embedding(Lowering& step) {
  const std::int64_t vocab = step.model.vocab_size;
  const TensorId ids = step.tensor("token_ids", DType::kInt32, TensorRole::kInput, {step.tokens()});
  step.embedding =
      step.weight("embed_tokens", DType::kBf16, {{axis::kVocab, vocab}, step.hidden_axis()});
  step.kernel("embedding", "embedding", DType::kBf16,
              {{"tokens", step.step.tokens, axis::kTokens},
               {"hidden", step.model.hidden_size, axis::kHidden},
               {"vocab", vocab, axis::kVocab}},
              {ids, step.embedding}, {step.hidden});
}

}  // namespace orrery

#include "sim/model/blocks/blocks.h"

namespace orrery {
namespace {

// Engines keep this projection in bf16 and whole on each rank (vLLM: deepseek_mtp.py,
// llama_eagle.py).
void join_hidden(Lowering& step) {
  const TensorId before = step.tensor("target_hidden", DType::kBf16, TensorRole::kInput,
                                      {step.tokens(), step.hidden_axis()});
  const TensorId embedded =
      step.rms_norm("embed_norm", step.hidden, step.tokens(), step.hidden_axis(), false);
  const TensorId normed =
      step.rms_norm("hidden_norm", before, step.tokens(), step.hidden_axis(), false);
  step.linear({.name = "joined_proj",
               .inputs = {embedded, normed},
               .rows = step.tokens(),
               .n = step.hidden_axis(),
               .k = {"joined", 2 * step.model.hidden_size},
               .output = step.hidden});
}

}  // namespace

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
  if (step.model.joins_hidden) join_hidden(step);
}

}  // namespace orrery

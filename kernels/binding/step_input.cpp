#include "kernels/binding/step_input.h"

#include <algorithm>
#include <iterator>

namespace orrery {

PrefillChunk chunk_of(const SequenceTokens& sequence) {
  return {.query = std::ssize(sequence.tokens),
          .context = sequence.context,
          .produces_token = sequence.produces_token};
}

Batch batch_of(const StepInput& input, std::int64_t num_decodes) {
  const std::int64_t padding = std::max<std::int64_t>(num_decodes - std::ssize(input.decodes), 0);
  Batch batch{.num_decodes = std::ssize(input.decodes) + padding, .decode_context = padding};
  for (const SequenceTokens& chunk : input.prefill) batch.prefill.push_back(chunk_of(chunk));
  for (const SequenceTokens& decode : input.decodes) batch.decode_context += decode.context + 1;
  return batch;
}

}  // namespace orrery

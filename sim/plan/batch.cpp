#include "sim/plan/batch.h"

#include <algorithm>

namespace orrery {

std::int64_t num_tokens(const Batch& batch) {
  std::int64_t tokens = batch.num_decodes * batch.decode_query;
  for (const PrefillChunk& chunk : batch.prefill) tokens += chunk.query;
  return tokens;
}

std::int64_t num_sequences(const Batch& batch) {
  return static_cast<std::int64_t>(batch.prefill.size()) + batch.num_decodes;
}

std::int64_t num_sampled(const Batch& batch) {
  const std::int64_t of_each = batch.samples_last ? 1 : batch.decode_query;
  return batch.num_decodes * of_each +
         std::ranges::count(batch.prefill, true, &PrefillChunk::produces_token);
}

std::int64_t num_keys(const Batch& batch) {
  std::int64_t keys = batch.decode_context;
  for (const PrefillChunk& chunk : batch.prefill) keys += chunk.context + chunk.query;
  return keys;
}

std::int64_t mean_context(const Batch& batch) {
  if (batch.num_decodes == 0) return 0;
  return (batch.decode_context + batch.num_decodes / 2) / batch.num_decodes;
}

std::int64_t longest_context(const Batch& batch) {
  std::int64_t longest = mean_context(batch);
  for (const PrefillChunk& chunk : batch.prefill) {
    longest = std::max(longest, chunk.context + chunk.query);
  }
  return longest;
}

std::int64_t kv_blocks(const Batch& batch, std::int64_t block_size) {
  const auto blocks_of = [&](std::int64_t tokens) {
    return (tokens + block_size - 1) / block_size;
  };
  std::int64_t blocks = batch.num_decodes * blocks_of(mean_context(batch));
  for (const PrefillChunk& chunk : batch.prefill) blocks += blocks_of(chunk.context + chunk.query);
  return blocks;
}

}  // namespace orrery

#pragma once

// What one engine step computes, in numbers: the scheduler decides it, the lowering makes it a
// plan, the executor draws or is given tokens for it.

#include <cstdint>
#include <vector>

namespace orrery {

// A run of new tokens of one request: `query` tokens after `context` already cached.
struct PrefillChunk {
  std::int64_t query = 0;
  std::int64_t context = 0;
  bool produces_token = true;  // the chunk ends its prompt, so a token is sampled
  bool operator==(const PrefillChunk&) const = default;
};

// Prefill chunks and `decode_query` tokens for each of `num_decodes` sequences whose contexts (the
// new tokens included) sum to `decode_context`.
struct Batch {
  std::vector<PrefillChunk> prefill;
  std::int64_t num_decodes = 0;
  std::int64_t decode_context = 0;
  // More than one where drafts are verified (sim/serve/speculation.h).
  std::int64_t decode_query = 1;
  // Of each decode the last of its tokens alone is sampled, not every one.
  bool samples_last = false;
  bool operator==(const Batch&) const = default;
};

std::int64_t num_tokens(const Batch& batch);     // new ones
std::int64_t num_sequences(const Batch& batch);  // chunks and decodes
std::int64_t num_sampled(const Batch& batch);
std::int64_t num_keys(const Batch& batch);  // tokens of all sequences, the new ones included
// Tokens of a decoding sequence, the mean, rounded; 0 without decodes.
std::int64_t mean_context(const Batch& batch);

// After the step, where each decoding sequence has mean_context() tokens: the most that a sequence
// has, and the blocks of `block_size` that all sequences have in the KV cache.
std::int64_t longest_context(const Batch& batch);
std::int64_t kv_blocks(const Batch& batch, std::int64_t block_size);

}  // namespace orrery

#pragma once

// Causal attention in double: attention_prefill and mla_prefill.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/attention_prefill/schedule.h"
#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

struct AttentionShape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t qk_dim = 1;
  std::int64_t v_dim = 1;
  std::int64_t window = kNoWindow;
  double scale = 1;
};

// Of one query token and head: softmax(scale q K^T) V over the keys it sees, and the logarithm of
// that softmax's denominator.
struct AttentionRow {
  std::vector<double> out;  // [v_dim]
  double lse = 0;
};

// A query token by its row in q, where it lies in its sequence, and where the sequence's keys
// begin.
struct QueryToken {
  std::int64_t row = 0;
  std::int64_t position = 0;
  std::int64_t key_row = 0;
};
// All new tokens of the sequences, in order; keys of the sequences follow each other.
std::vector<QueryToken> query_tokens(std::span<const PrefillChunk> sequences);

// q [tokens, heads, qk_dim], keys [keys, kv_heads, qk_dim], values [keys, kv_heads, v_dim]. Throws
// std::invalid_argument when the token or a key it sees lies outside of them, or when it sees none.
AttentionRow attention_row(std::span<const double> q, std::span<const double> keys,
                           std::span<const double> values, const AttentionShape& shape,
                           const QueryToken& token, std::int64_t head);

// Attention of an op over the cache: each sequence's new tokens see what is in its blocks, which
// holds them already. `first_row`: the row of the step that is row 0 of the result.
Results attend(const KernelCall& call, const std::vector<SequenceRows>& sequences,
               std::int64_t first_row);

}  // namespace orrery::reference

#pragma once

// attention_decode in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/attention_decode/split.h"

namespace orrery::reference {

struct AttentionDecodeInputs {
  std::span<const double> q;                   // [seqs, heads, head_dim]
  std::span<const double> keys;                // [num_blocks, block_size, kv_heads, head_dim]
  std::span<const double> values;              // the same
  std::span<const std::int32_t> block_table;   // [seqs, blocks_per_sequence]
  std::span<const std::int32_t> context_lens;  // [seqs]
  std::int64_t blocks_per_sequence = 0;
  std::int64_t block_size = 0;
  double scale = 1;  // of q k^T, key_scale included
  double value_scale = 1;
};
struct AttentionDecodeOutputs {
  std::vector<double> out;  // [seqs, heads, head_dim]; zero where there are no keys
  std::vector<double> lse;  // [seqs, heads]; -infinity where there are no keys
};

// softmax(scale q K^T) V over the newest `window` keys of each sequence. Only rows of the cache
// that a token sees are read.
AttentionDecodeOutputs attention_decode(const AttentionDecodeShape& shape,
                                        const AttentionDecodeInputs& inputs);

}  // namespace orrery::reference

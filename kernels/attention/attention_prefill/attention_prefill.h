#pragma once

// Causal attention of new tokens over their sequence's cached tokens and themselves (prefill,
// chunked prefill), with grouped query heads. Queries and outputs of all sequences follow each
// other: [tokens, heads, head_dim] bf16; queries may lie in longer rows (those of a fused
// projection).

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/attention_prefill/schedule.h"
#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/paged_kv.h"

namespace orrery {

// The tiles of one batch in device memory, made once on the host and used by every layer of a step.
// Launches that share a plan must be ordered (one stream): they share its counters.
class PrefillPlan {
 public:
  // For tiles of `tile_rows` rows: attention_prefill_tile_rows() or kMlaPrefillTileRows. Complete
  // on return. Throws as prefill_tiles() does, and cuda::Error.
  PrefillPlan(std::span<const PrefillChunk> sequences, std::int32_t tile_rows,
              std::int32_t window = kNoWindow);
  // Of pieces of prompts among `tokens` rows of queries and `keys` of keys.
  PrefillPlan(std::span<const PrefillPiece> pieces, std::int64_t tokens, std::int64_t keys,
              std::int32_t tile_rows, std::int32_t window);

  [[nodiscard]] std::int32_t num_tiles() const { return num_tiles_; }
  [[nodiscard]] std::int32_t tile_rows() const { return tile_rows_; }
  [[nodiscard]] std::int32_t window() const { return window_; }
  [[nodiscard]] std::int32_t tokens() const { return tokens_; }  // new ones of all sequences
  [[nodiscard]] std::int32_t keys() const { return keys_; }      // of all sequences
  // Whether pieces say how many keys they see.
  [[nodiscard]] bool is_bounded() const { return is_bounded_; }
  [[nodiscard]] const PrefillTile* tiles() const {
    return reinterpret_cast<const PrefillTile*>(memory_.get() + kTilesAt);
  }
  [[nodiscard]] int* counters() const { return reinterpret_cast<int*>(memory_.get()); }

 private:
  static constexpr std::size_t kTilesAt = 128;  // bytes, a line of cache behind the counters

  void take(std::span<const PrefillTile> tiles);

  std::int32_t num_tiles_ = 0;
  std::int32_t tile_rows_ = 0;
  std::int32_t window_ = 0;
  std::int32_t tokens_ = 0;
  std::int32_t keys_ = 0;
  bool is_bounded_ = false;
  cuda::DeviceBuffer<std::byte> memory_;  // counters and tiles, in one copy: a step waits for it
};

// Query rows of a tile for that head size. Throws std::invalid_argument unless it is 64 or 128.
std::int32_t attention_prefill_tile_rows(std::int32_t head_dim);

struct AttentionPrefill {
  const bf16* q = nullptr;  // [tokens, heads, head_dim], 16-byte aligned, as each token's must be
  bf16* out = nullptr;      // [tokens, heads, head_dim], 16-byte aligned
  float* lse = nullptr;     // [tokens, heads], log of the softmax's denominator; null: not written
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;  // 64 or 128
  float scale = 0;            // of q k^T, above 0
  std::int64_t q_stride = 0;  // elements from token to token, a multiple of 8; 0: contiguous
};

// Keys and values [plan.keys(), kv_heads, head_dim], those of a sequence together: cached, then
// new. Throws std::invalid_argument for sizes or alignments other than these, or a plan made for
// another tile; cuda::Error when the launch fails.
void attention_prefill(const cuda::Stream& stream, const PrefillPlan& plan,
                       const AttentionPrefill& call, const bf16* keys, const bf16* values);
// Keys and values in a paged cache that already holds the new tokens; sequence s of the plan is row
// s of the block table. Rows of a page past the sequence's end may hold anything.
void attention_prefill(const cuda::Stream& stream, const PrefillPlan& plan,
                       const AttentionPrefill& call, const PagedKv<const bf16>& cache);

}  // namespace orrery

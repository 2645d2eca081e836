#pragma once

// Causal attention of MLA's prefill (DeepSeek-V2 and V3): keys and values already expanded from the
// latent cache to all heads, a key of 192 elements (128 without and 64 with position, which all
// heads share) and a value of 128.

#include "kernels/attention/attention_prefill/attention_prefill.h"

namespace orrery {

inline constexpr std::int32_t kMlaPrefillTileRows = 128;  // for PrefillPlan
inline constexpr std::int32_t kMlaQkHeadDim = 192;
inline constexpr std::int32_t kMlaVHeadDim = 128;
inline constexpr std::int32_t kMlaRotatedDim = 64;  // last elements of a query and a key
inline constexpr std::int32_t kMlaPlainDim = kMlaQkHeadDim - kMlaRotatedDim;

// bf16 [rows, heads, dim]; strides in elements, multiples of 8.
struct MlaRows {
  const bf16* data = nullptr;
  std::int64_t stride = 0;       // from row to row; 0: contiguous
  std::int64_t head_stride = 0;  // from head to head; 0: dim
};

struct MlaPrefill {
  const bf16* q = nullptr;  // [plan.tokens(), heads, 192]; all pointers 16-byte aligned
  MlaRows keys;             // [plan.keys(), heads, 128], those of a sequence together
  MlaRows rotated;          // [plan.keys(), rotated_heads, 64], the last elements of keys
  MlaRows values;           // [plan.keys(), heads, 128]
  bf16* out = nullptr;      // [plan.tokens(), heads, 128]
  float* lse = nullptr;     // [tokens, heads], log of the softmax's denominator; or null
  std::int32_t heads = 0;
  std::int32_t rotated_heads = 1;  // 1: one for all heads; or heads
  float scale = 0;                 // of q k^T, above 0
};

// Throws std::invalid_argument for sizes or alignments other than these, or a plan made for another
// tile; cuda::Error when the launch fails.
void mla_prefill(const cuda::Stream& stream, const PrefillPlan& plan, const MlaPrefill& call);

}  // namespace orrery

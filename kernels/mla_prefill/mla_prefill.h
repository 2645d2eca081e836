#pragma once

// Causal attention of MLA's prefill (DeepSeek-V2 and V3): keys and values already expanded from the
// latent cache to all heads, a key of 192 elements (128 without and 64 with position) and a value
// of 128.

#include "kernels/attention_prefill/attention_prefill.h"

namespace orrery {

inline constexpr std::int32_t kMlaPrefillTileRows = 128;  // for PrefillPlan
inline constexpr std::int32_t kMlaQkHeadDim = 192;
inline constexpr std::int32_t kMlaVHeadDim = 128;

struct MlaPrefill {
  const bf16* q = nullptr;       // [plan.tokens(), heads, 192]; all pointers 16-byte aligned
  const bf16* keys = nullptr;    // [plan.keys(), heads, 192], those of a sequence together
  const bf16* values = nullptr;  // [plan.keys(), heads, 128]
  bf16* out = nullptr;           // [plan.tokens(), heads, 128]
  float* lse = nullptr;          // [heads, tokens], log of the softmax's denominator; or null
  std::int32_t heads = 0;
  float scale = 0;  // of q k^T, above 0
};

// Throws std::invalid_argument for sizes or alignments other than these, or a plan made for another
// tile; cuda::Error when the launch fails.
void mla_prefill(const cuda::Stream& stream, const PrefillPlan& plan, const MlaPrefill& call);

}  // namespace orrery

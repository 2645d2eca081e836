#pragma once

// Attention over all keys from results over parts of them.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

inline constexpr std::int64_t kMostMergedParts = 32;

struct AttentionMergeShape {
  std::int64_t parts = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;  // a multiple of 8
};

// Of each part
//   x    bf16 [tokens, heads, head_dim]
//   lse  fp32 [tokens, heads], natural logarithm of the sum of exp(scores); -infinity: the part has
//        no keys, and is not used, even NaN
struct MergedParts {
  const bf16* x[kMostMergedParts] = {};
  const float* lse[kMostMergedParts] = {};
};
// Those of [parts, tokens, heads, head_dim] and [parts, tokens, heads].
MergedParts parts_in_order(const bf16* x, const float* lse, const AttentionMergeShape& shape);

// out [tokens, heads, head_dim] = sum of exp(lse - largest) x / sum of exp(lse - largest), in fp32
// and rounded once. Of rows that no part has keys of: zeros. x and out are 16-byte aligned and do
// not overlap. Throws std::invalid_argument for other sizes or alignments, cuda::Error when the
// launch fails.
void attention_merge(const cuda::Stream& stream, const MergedParts& parts,
                     const AttentionMergeShape& shape, bf16* out);

}  // namespace orrery

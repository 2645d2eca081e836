#pragma once

// Attention of one new token per sequence over its paged KV cache.

#include <cstdint>

#include "kernels/attention/attention_decode/split.h"
#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/paged_kv.h"

namespace orrery {

struct AttentionDecodeOutput {
  bf16* out = nullptr;   // [seqs, heads, head_dim]
  float* lse = nullptr;  // [seqs, heads], natural logarithm of the sum of exp(scores); or null
};

// out = softmax(scale q K^T) V per sequence and head; head h uses kv head h / (heads / kv_heads).
//   q             bf16 [seqs, heads, head_dim], shape.q_stride elements from sequence to sequence
//   cache         T = bf16 or fp8
//   context_lens  int32 [seqs] on the device: tokens in the cache, the new one included; 0 gives
//                 zeros and an lse of -infinity. They may differ and may change between replays of
//                 a captured launch. Cache rows outside of what a token sees are never used, even
//                 NaN.
//   split         of attention_decode_split() for this shape and sizeof(T)
//   workspace     attention_decode_workspace_bytes(), its counters zeroed once; launches that share
//                 it must not overlap
// out, q, keys, values and workspace are 16-byte aligned.
// Allocates nothing and synchronises nothing. Throws std::invalid_argument for a shape, block size
// or alignment that it does not take, cuda::Error when the launch fails.
template <typename T>
void attention_decode(const cuda::Stream& stream, const AttentionDecodeOutput& output,
                      const bf16* q, const PagedKv<const T>& cache,
                      const std::int32_t* context_lens, const AttentionDecodeShape& shape,
                      float scale, const AttentionDecodeSplit& split, void* workspace);

}  // namespace orrery

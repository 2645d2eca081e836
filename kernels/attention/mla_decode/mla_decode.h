#pragma once

// Absorbed multi-head latent attention of one new token per sequence over a paged cache of latents
// (DeepSeek-V2, arXiv 2405.04434, section 2.1): all heads share one key of 576 elements (512 of the
// latent, 64 rotated) whose latent is the value too.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/paged_kv.h"

namespace orrery {

inline constexpr std::int32_t kMlaLatent = 512;
inline constexpr std::int32_t kMlaRope = 64;
inline constexpr std::int32_t kMlaKey = kMlaLatent + kMlaRope;

struct MlaDecodeDims {
  std::int32_t sequences = 0;
  std::int32_t heads = 0;  // 1 to 128
};

// Queries of each head: what meets the latents, and what meets the rotated keys. bf16 [sequences,
// heads, 512] and [sequences, heads, 64], 16-byte aligned; strides in elements, multiples of 8.
struct MlaQueries {
  const bf16* latent = nullptr;
  const bf16* rotated = nullptr;
  std::int64_t latent_head_stride = kMlaLatent;  // from head to head; sequences follow each other
  std::int64_t rotated_head_stride = kMlaRope;
};
// Those of q [sequences, heads, 576].
inline MlaQueries joined_queries(const bf16* q) {
  return {.latent = q,
          .rotated = q + kMlaLatent,
          .latent_head_stride = kMlaKey,
          .rotated_head_stride = kMlaKey};
}

// Bytes of scratch memory that mla_decode needs for these dims on the current device.
std::size_t mla_decode_workspace_bytes(const MlaDecodeDims& dims);

// out[s][h] = sum over t < lengths[s] of p_t cache[s][t][0..512), p = softmax(scale q[s][h] .
// cache[s][t]), q[s][h] of 576 elements in two parts.
//   cache    keys [num_blocks, block_size, 576], 16-byte aligned, block_size 16, 32, 64 or 128;
//            rows past a sequence's length may hold anything
//   lengths  [sequences] int32 on the device, the new token included; 0 gives zeros and lse -inf
//   scale    of the scores, positive: 1 / sqrt(192) for DeepSeek-V3
//   out      [sequences, heads, 512], 4-byte aligned
//   lse      [sequences, heads] natural logarithm of the sum of exponentials, or null
//   workspace  mla_decode_workspace_bytes(dims), 16-byte aligned; calls that share one must be
//            ordered
// The lengths are read on the device when the kernel runs, so a captured graph may be replayed with
// others. Throws std::invalid_argument for dims, block sizes or alignments it does not take,
// cuda::Error when a launch fails.
void mla_decode(const cuda::Stream& stream, const MlaQueries& q, const PagedKv<const bf16>& cache,
                const std::int32_t* lengths, const MlaDecodeDims& dims, float scale, bf16* out,
                float* lse, void* workspace);

}  // namespace orrery

#pragma once

// Stores keys and values of new tokens in the paged KV cache (kernels/cuda/paged_kv.h).

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/paged_kv.h"

namespace orrery {

// keys, values   bf16 [tokens, width], width = kv_heads * head_dim, `stride` elements from token to
//                token (0: contiguous); values may be null (MLA keeps keys alone)
// slots          int64 [tokens]: block * block_size + row within the block; a negative one stores
//                nothing
// cache          its blocks only; the block table is not read. An fp8 element is the value divided
//                by key_scale or value_scale, clamped to +-448.
// 16-byte aligned pointers, a width and a stride that are multiples of 8 go by vectors; anything
// else is correct but slow. Throws std::invalid_argument for a scale that is not positive or a
// stride below the width other than 0, cuda::Error when the launch fails.
void kv_append(const cuda::Stream& stream, const bf16* keys, const bf16* values,
               const std::int64_t* slots, const PagedKv<bf16>& cache, std::int64_t tokens,
               std::int64_t width, std::int64_t stride = 0);
void kv_append(const cuda::Stream& stream, const bf16* keys, const bf16* values,
               const std::int64_t* slots, const PagedKv<fp8>& cache, std::int64_t tokens,
               std::int64_t width, std::int64_t stride = 0);

// Rows of MLA's cache, a latent and a rotated key, which lie in two tensors.
struct LatentRows {
  const bf16* latents = nullptr;   // [tokens, latent]
  const bf16* rotated = nullptr;   // [tokens, rope]
  std::int64_t latent = 0;         // elements
  std::int64_t rope = 0;           // elements
  std::int64_t latent_stride = 0;  // elements from token to token; 0: contiguous
  std::int64_t rope_stride = 0;
};
// cache  keys [num_blocks, block_size, latent + rope]; else as kv_append.
void kv_append_latent(const cuda::Stream& stream, const LatentRows& rows, const std::int64_t* slots,
                      const PagedKv<bf16>& cache, std::int64_t tokens);

}  // namespace orrery

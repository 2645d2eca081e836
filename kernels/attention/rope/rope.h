#pragma once

// Rotary position embedding (Su et al., arXiv 2104.09864) of queries and keys in place.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

struct RopeShape {
  std::int64_t tokens = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;  // 0: no keys
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;    // the first elements of a head that turn: even, <= head_dim
  std::int64_t query_stride = 0;  // elements from token to token; 0: heads * head_dim
  std::int64_t key_stride = 0;
  bool interleaved = false;  // pairs (2i, 2i + 1); else (i, i + rotary_dim / 2) as in GPT-NeoX
};

// queries    bf16 [tokens, query_heads, head_dim], keys bf16 [tokens, key_heads, head_dim]
// positions  int32 [tokens], each below the rows of the tables
// cosines, sines   fp32 [positions, rotary_dim / 2]
// Pair i of a token at position p becomes (a cos - b sin, b cos + a sin) with the table's row p.
// Vectors where a head's parts are whole 16-byte vectors (rotary_dim a multiple of 16, strides
// and head_dim of 8, aligned pointers); anything else is correct but slow. Throws
// std::invalid_argument for a rotary_dim that is odd or above head_dim, or more than 2^31 vectors;
// cuda::Error when the launch fails.
void rope(const cuda::Stream& stream, bf16* queries, bf16* keys, const std::int32_t* positions,
          const float* cosines, const float* sines, const RopeShape& shape);

}  // namespace orrery

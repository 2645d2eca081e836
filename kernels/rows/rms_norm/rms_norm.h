#pragma once

// y = x / sqrt(mean(x^2) + epsilon) * weight by rows; x bf16 [tokens, hidden], weight bf16
// [hidden]. All tensors contiguous but for x where options say so. Sums in fp32; y is rounded once.
// 16-byte aligned pointers, a stride that is a multiple of 8 and a hidden that is one up to 32,768
// go by vectors; anything else is correct but slow.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

struct NormOptions {
  float epsilon = 1e-5f;
  std::int64_t x_stride = 0;  // elements from row to row of x, at least hidden; 0: contiguous
};

// y bf16 [tokens, hidden]; may be x where that is contiguous. Throws std::invalid_argument for rows
// of x that overlap, cuda::Error when the launch fails; so do the next two.
void rms_norm(const cuda::Stream& stream, const bf16* x, const bf16* weight, bf16* y,
              std::int64_t tokens, std::int64_t hidden, const NormOptions& options = {});

// y fp8 [tokens, hidden] with a scale for each token, scales [tokens]: the largest |y| / 448, so
// that y is the stored value times the scale. A row of zeros has scale 0.
void rms_norm_fp8(const cuda::Stream& stream, const bf16* x, const bf16* weight, fp8* y,
                  float* scales, std::int64_t tokens, std::int64_t hidden,
                  const NormOptions& options = {});

// y fp8 with the one scale given; beyond 448 times the scale values are clamped. Throws
// std::invalid_argument for a scale that is not positive.
void rms_norm_fp8_static(const cuda::Stream& stream, const bf16* x, const bf16* weight, fp8* y,
                         float scale, std::int64_t tokens, std::int64_t hidden,
                         const NormOptions& options = {});

struct HeadNormShape {
  std::int64_t tokens = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t head_dim = 0;  // 64, 128 or 256
  std::int64_t stride = 0;    // elements from token to token, a multiple of 8; 0: contiguous
};

// Each head by itself and in place: heads bf16 [tokens, query_heads + key_heads, head_dim], weight
// bf16 [2, head_dim], the first row for query heads, the second for key heads. Both 16-byte
// aligned. Throws std::invalid_argument for another head_dim or stride, pointers that are not
// aligned, or more than 2^31 vectors; cuda::Error when the launch fails.
void rms_norm_heads(const cuda::Stream& stream, bf16* heads, const bf16* weight,
                    const HeadNormShape& shape, const NormOptions& options = {});

}  // namespace orrery

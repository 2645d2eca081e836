#pragma once

// y = x / sqrt(mean(x^2) + epsilon) * weight by rows; x bf16 [tokens, hidden], weight bf16
// [hidden]. All tensors contiguous. Sums in fp32; y is rounded once. 16-byte aligned pointers and a
// hidden that is a multiple of 8 up to 32,768 go by vectors; anything else is correct but slow.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

struct NormOptions {
  float epsilon = 1e-5f;
};

// y bf16 [tokens, hidden]; may be x. Throws cuda::Error when the launch fails.
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

}  // namespace orrery

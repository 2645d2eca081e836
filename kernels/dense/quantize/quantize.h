#pragma once

// bf16 activations x [tokens, hidden] to fp8 y [tokens, hidden]; the value is y times its scale.
// Contiguous. 16-byte aligned pointers and a hidden that is a multiple of 8 (rowwise: up to 32,768;
// blocks: of 128) go by vectors; anything else is correct but slow.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

inline constexpr std::int64_t kQuantizeBlock = 128;

// A scale for each token, scales [tokens]: the largest |x| of the row / 448. Throws cuda::Error
// when the launch fails.
void quantize_rowwise(const cuda::Stream& stream, const bf16* x, fp8* y, float* scales,
                      std::int64_t tokens, std::int64_t hidden);

// The one scale given; beyond 448 times the scale values are clamped. Throws std::invalid_argument
// for a scale that is not positive.
void quantize_static(const cuda::Stream& stream, const bf16* x, fp8* y, float scale,
                     std::int64_t tokens, std::int64_t hidden);

// A scale for each 128 elements of a token, scales [tokens, ceil(hidden / 128)]: the largest |x| of
// the block / 448.
void quantize_blocks(const cuda::Stream& stream, const bf16* x, fp8* y, float* scales,
                     std::int64_t tokens, std::int64_t hidden);

}  // namespace orrery

#pragma once

// y = silu(gate) * up, silu(v) = v / (1 + exp(-v)); x bf16 [tokens, 2 ffn] holds the gates of a
// token and then its ups. Contiguous; computed in fp32 and rounded to bf16, from which the fp8
// forms go on. With `num_rows` [1] on the device, rows past *num_rows (of up to `tokens`) cost
// nothing and are neither read nor written. 16-byte aligned pointers and an ffn that is a multiple
// of 8 (rowwise: up to 32,768) go by vectors; anything else is correct but slow.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"

namespace orrery {

// y bf16 [tokens, ffn]. Throws cuda::Error when the launch fails.
void silu_mul(const cuda::Stream& stream, const bf16* x, bf16* y, std::int64_t tokens,
              std::int64_t ffn, const std::int32_t* num_rows = nullptr);

// y fp8 [tokens, ffn] with a scale for each token, scales [tokens]: the largest |y| / 448.
void silu_mul_fp8(const cuda::Stream& stream, const bf16* x, fp8* y, float* scales,
                  std::int64_t tokens, std::int64_t ffn, const std::int32_t* num_rows = nullptr);

// y fp8 with the one scale given; beyond 448 times the scale values are clamped. Throws
// std::invalid_argument for a scale that is not positive.
void silu_mul_fp8_static(const cuda::Stream& stream, const bf16* x, fp8* y, float scale,
                         std::int64_t tokens, std::int64_t ffn);

}  // namespace orrery

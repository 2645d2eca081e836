#pragma once

// residual += x, then y = rms_norm(residual) of the sums as rounded to bf16; residual and x bf16
// [tokens, hidden], not overlapping. Widths, alignment, epsilon and fp8 formats as in
// kernels/rows/rms_norm/rms_norm.h.

#include "kernels/rows/rms_norm/rms_norm.h"

namespace orrery {

// y bf16 [tokens, hidden]; may be x. Throws cuda::Error when the launch fails.
void add_rms_norm(const cuda::Stream& stream, bf16* residual, const bf16* x, const bf16* weight,
                  bf16* y, std::int64_t tokens, std::int64_t hidden,
                  const NormOptions& options = {});

// y fp8 [tokens, hidden], scales [tokens].
void add_rms_norm_fp8(const cuda::Stream& stream, bf16* residual, const bf16* x, const bf16* weight,
                      fp8* y, float* scales, std::int64_t tokens, std::int64_t hidden,
                      const NormOptions& options = {});

// y fp8 with the one scale given. Throws std::invalid_argument for a scale that is not positive.
void add_rms_norm_fp8_static(const cuda::Stream& stream, bf16* residual, const bf16* x,
                             const bf16* weight, fp8* y, float scale, std::int64_t tokens,
                             std::int64_t hidden, const NormOptions& options = {});

}  // namespace orrery

#include <stdexcept>
#include <string>

#include "kernels/cuda/row_kernel.cuh"
#include "kernels/rows/rms_norm/rms_norm.h"

namespace orrery {
namespace {

PlainRows rows_of(const bf16* x, std::int64_t hidden, const NormOptions& options) {
  if (options.x_stride != 0 && options.x_stride < hidden) {
    throw std::invalid_argument("rms_norm: rows of " + std::to_string(hidden) + " elements " +
                                std::to_string(options.x_stride) +
                                " apart, expected 0 or at least as many");
  }
  return {x, hidden, options.x_stride == 0 ? hidden : options.x_stride};
}

bool is_aligned(const NormOptions& options) { return options.x_stride % kVectorSize == 0; }

}  // namespace

void rms_norm(const cuda::Stream& stream, const bf16* x, const bf16* weight, bf16* y,
              std::int64_t tokens, std::int64_t hidden, const NormOptions& options) {
  launch_rows(stream, rows_of(x, hidden, options), RmsNorm{weight, options.epsilon},
              Bf16Rows{y, hidden}, tokens, is_aligned(options) && vector_aligned(x, weight, y));
}

void rms_norm_fp8(const cuda::Stream& stream, const bf16* x, const bf16* weight, fp8* y,
                  float* scales, std::int64_t tokens, std::int64_t hidden,
                  const NormOptions& options) {
  launch_rows(stream, rows_of(x, hidden, options), RmsNorm{weight, options.epsilon},
              RowwiseFp8Rows{y, scales, hidden}, tokens,
              is_aligned(options) && vector_aligned(x, weight, y));
}

void rms_norm_fp8_static(const cuda::Stream& stream, const bf16* x, const bf16* weight, fp8* y,
                         float scale, std::int64_t tokens, std::int64_t hidden,
                         const NormOptions& options) {
  launch_rows(stream, rows_of(x, hidden, options), RmsNorm{weight, options.epsilon},
              StaticFp8Rows{y, hidden, reciprocal_scale("rms_norm_fp8_static", scale)}, tokens,
              is_aligned(options) && vector_aligned(x, weight, y));
}

}  // namespace orrery

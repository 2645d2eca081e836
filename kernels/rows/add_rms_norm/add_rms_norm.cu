#include "kernels/cuda/row_kernel.cuh"
#include "kernels/rows/add_rms_norm/add_rms_norm.h"

namespace orrery {

void add_rms_norm(const cuda::Stream& stream, bf16* residual, const bf16* x, const bf16* weight,
                  bf16* y, std::int64_t tokens, std::int64_t hidden, const NormOptions& options) {
  launch_rows(stream, SumRows{residual, x, hidden}, RmsNorm{weight, options.epsilon},
              Bf16Rows{y, hidden}, tokens, vector_aligned(residual, x, weight, y));
}

void add_rms_norm_fp8(const cuda::Stream& stream, bf16* residual, const bf16* x, const bf16* weight,
                      fp8* y, float* scales, std::int64_t tokens, std::int64_t hidden,
                      const NormOptions& options) {
  launch_rows(stream, SumRows{residual, x, hidden}, RmsNorm{weight, options.epsilon},
              RowwiseFp8Rows{y, scales, hidden}, tokens, vector_aligned(residual, x, weight, y));
}

void add_rms_norm_fp8_static(const cuda::Stream& stream, bf16* residual, const bf16* x,
                             const bf16* weight, fp8* y, float scale, std::int64_t tokens,
                             std::int64_t hidden, const NormOptions& options) {
  launch_rows(stream, SumRows{residual, x, hidden}, RmsNorm{weight, options.epsilon},
              StaticFp8Rows{y, hidden, reciprocal_scale("add_rms_norm_fp8_static", scale)}, tokens,
              vector_aligned(residual, x, weight, y));
}

}  // namespace orrery

#include "kernels/cuda/counted_rows.cuh"
#include "kernels/cuda/map_kernel.cuh"
#include "kernels/cuda/row_kernel.cuh"
#include "kernels/rows/silu_mul/silu_mul.h"

namespace orrery {

void silu_mul(const cuda::Stream& stream, const bf16* x, bf16* y, std::int64_t tokens,
              std::int64_t ffn, const std::int32_t* num_rows) {
  const GatedRows source{x, ffn};
  const Bf16Rows sink{y, ffn};
  if (num_rows != nullptr) {
    return launch_counted_rows(stream, source, sink, {.most = tokens, .on_device = num_rows},
                               /*preferred=*/1, vector_aligned(x, y));
  }
  launch_map(stream, source, sink, tokens, vector_aligned(x, y));
}

void silu_mul_fp8(const cuda::Stream& stream, const bf16* x, fp8* y, float* scales,
                  std::int64_t tokens, std::int64_t ffn, const std::int32_t* num_rows) {
  const GatedRows source{x, ffn};
  const RowwiseFp8Rows sink{y, scales, ffn};
  if (num_rows != nullptr) {
    return launch_counted_rows(stream, source, sink, {.most = tokens, .on_device = num_rows},
                               GatedRows::kRowVectors, vector_aligned(x, y));
  }
  launch_rows(stream, source, NoNorm{}, sink, tokens, vector_aligned(x, y));
}

void silu_mul_fp8_static(const cuda::Stream& stream, const bf16* x, fp8* y, float scale,
                         std::int64_t tokens, std::int64_t ffn) {
  launch_map(stream, GatedRows{x, ffn},
             StaticFp8Rows{y, ffn, reciprocal_scale("silu_mul_fp8_static", scale)}, tokens,
             vector_aligned(x, y));
}

}  // namespace orrery

#include "kernels/cuda/map_kernel.cuh"
#include "kernels/rows/residual_add/residual_add.h"

namespace orrery {
namespace {

// a + b, both [rows, columns], rounded to bf16.
struct AddedRows {
  struct Raw {
    uint4 a;
    uint4 b;
  };
  const bf16* a;
  const bf16* b;
  std::int64_t columns;

  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * columns + column;
    return {load_once(a + at), load_once(b + at)};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const {
    float sum[kVectorSize];
    float added[kVectorSize];
    unpack(raw.a, sum);
    unpack(raw.b, added);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) sum[i] += added[i];
    return pack(sum);
  }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * columns + column;
    return __bfloat162float(a[at]) + __bfloat162float(b[at]);
  }
};

}  // namespace

void residual_add(const cuda::Stream& stream, const bf16* residual, const bf16* x, bf16* sum,
                  std::int64_t tokens, std::int64_t hidden) {
  launch_map(stream, AddedRows{residual, x, hidden}, Bf16Rows{sum, hidden}, tokens,
             vector_aligned(residual, x, sum));
}

}  // namespace orrery

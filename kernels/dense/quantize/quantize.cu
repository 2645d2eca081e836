#include "kernels/cuda/map_kernel.cuh"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/row_kernel.cuh"
#include "kernels/dense/quantize/quantize.h"

namespace orrery {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kVectorsPerThread = 2;
constexpr int kLanes = kQuantizeBlock / kVectorSize;  // threads that share a scale

// `count` vectors in blocks of kLanes; half a warp reduces each block by shuffles. Each thread
// loads its vectors ahead of the first reduction.
template <int kVectors>
__global__ void __launch_bounds__(kBlockThreads)
    blocks_kernel(const bf16* x, fp8* y, float* scales, std::int64_t count) {
  begin_dependent();
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kBlockThreads * kVectors + threadIdx.x;
  uint4 packed[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t vector = first + i * kBlockThreads;
    packed[i] = vector < count ? load_once(x + vector * kVectorSize) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t vector = first + i * kBlockThreads;
    float values[kVectorSize];
    unpack(packed[i], values);
    float peak = 0;
#pragma unroll
    for (const float value : values) peak = fmaxf(peak, fabsf(value));
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
      peak = fmaxf(peak, __shfl_xor_sync(0xFFFFFFFFU, peak, lanes));
    }
    if (vector >= count) continue;
    const float multiplier = fp8_multiplier(peak);
#pragma unroll
    for (float& value : values) value *= multiplier;
    store_fp8(y + vector * kVectorSize, values);
    if (threadIdx.x % kLanes == 0) scales[vector / kLanes] = peak / kFp8Max;
  }
}

// Any width and alignment: a warp for each block of each row.
__global__ void __launch_bounds__(kBlockThreads)
    blocks_scalar_kernel(const bf16* x, fp8* y, float* scales, std::int64_t tokens,
                         std::int64_t hidden) {
  begin_dependent();
  const std::int64_t per_row = (hidden + kQuantizeBlock - 1) / kQuantizeBlock;
  const std::int64_t block =
      (static_cast<std::int64_t>(blockIdx.x) * kBlockThreads + threadIdx.x) / kWarpSize;
  if (block >= tokens * per_row) return;
  const std::int64_t row = block / per_row;
  const std::int64_t begin = (block % per_row) * kQuantizeBlock;
  const std::int64_t end = min(begin + kQuantizeBlock, hidden);
  float peak = 0;
  for (std::int64_t i = begin + threadIdx.x % kWarpSize; i < end; i += kWarpSize) {
    peak = fmaxf(peak, fabsf(__bfloat162float(x[row * hidden + i])));
  }
  peak = warp_peak(peak);
  const float multiplier = fp8_multiplier(peak);
  for (std::int64_t i = begin + threadIdx.x % kWarpSize; i < end; i += kWarpSize) {
    y[row * hidden + i] = fp8(__bfloat162float(x[row * hidden + i]) * multiplier);
  }
  if (threadIdx.x % kWarpSize == 0) scales[block] = peak / kFp8Max;
}

dim3 blocks_for(std::int64_t count, std::int64_t per_block) {
  return dim3(static_cast<unsigned>((count + per_block - 1) / per_block));
}

}  // namespace

void quantize_rowwise(const cuda::Stream& stream, const bf16* x, fp8* y, float* scales,
                      std::int64_t tokens, std::int64_t hidden) {
  launch_rows(stream, PlainRows{x, hidden, hidden}, NoNorm{}, RowwiseFp8Rows{y, scales, hidden},
              tokens, vector_aligned(x, y));
}

void quantize_static(const cuda::Stream& stream, const bf16* x, fp8* y, float scale,
                     std::int64_t tokens, std::int64_t hidden) {
  const float multiplier = reciprocal_scale("quantize_static", scale);
  launch_map(stream, PlainRows{x, hidden, hidden}, StaticFp8Rows{y, hidden, multiplier}, tokens,
             vector_aligned(x, y));
}

void quantize_blocks(const cuda::Stream& stream, const bf16* x, fp8* y, float* scales,
                     std::int64_t tokens, std::int64_t hidden) {
  if (tokens == 0 || hidden == 0) return;
  if (hidden % kQuantizeBlock != 0 || !vector_aligned(x, y)) {
    const std::int64_t warps = tokens * ((hidden + kQuantizeBlock - 1) / kQuantizeBlock);
    cuda::launch(stream,
                 {.grid = blocks_for(warps, kBlockThreads / kWarpSize),
                  .block = dim3(kBlockThreads),
                  .programmatic = true},
                 blocks_scalar_kernel, x, y, scales, tokens, hidden);
    return;
  }
  const std::int64_t count = tokens * hidden / kVectorSize;
  const bool few = map_shape(1, count, kVectorsPerThread).vectors_per_thread == 1;
  const int per_thread = few ? 1 : kVectorsPerThread;
  cuda::launch(stream,
               {.grid = blocks_for(count, static_cast<std::int64_t>(kBlockThreads) * per_thread),
                .block = dim3(kBlockThreads),
                .programmatic = true},
               few ? blocks_kernel<1> : blocks_kernel<kVectorsPerThread>, x, y, scales, count);
}

}  // namespace orrery

#pragma once

// Reductions over the threads of a warp and of a block.

#include <cstdint>

namespace orrery {

inline constexpr int kWarpSize = 32;
inline constexpr int kMostWarps = 32;

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, lanes);
  }
  return value;
}
// Of values that are not negative: their order is that of their bits.
__device__ inline float warp_peak(float value) {
  return __uint_as_float(__reduce_max_sync(0xFFFFFFFFU, __float_as_uint(value)));
}

struct SumAndPeak {
  float sum = 0;
  float peak = 0;  // largest absolute value
};

// Over the threads of a row that share threadIdx.y: one warp, or a whole block of up to kMostWarps
// warps and one row. Once per launch: the shared memory is not free for another call.
template <bool kSum, bool kPeak>
__device__ SumAndPeak row_reduce(SumAndPeak value) {
  __shared__ SumAndPeak partial[kMostWarps];
  if constexpr (kSum) value.sum = warp_sum(value.sum);
  if constexpr (kPeak) value.peak = warp_peak(value.peak);
  const unsigned warps = blockDim.x / kWarpSize;
  if (warps == 1) return value;
  const unsigned lane = threadIdx.x % kWarpSize;
  if (lane == 0) partial[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = lane < warps ? partial[lane] : SumAndPeak{};
  if constexpr (kSum) value.sum = warp_sum(value.sum);
  if constexpr (kPeak) value.peak = warp_peak(value.peak);
  return value;
}

}  // namespace orrery

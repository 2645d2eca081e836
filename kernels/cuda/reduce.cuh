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

// Over the threads of a row that share threadIdx.y: one warp, or up to kMostWarps warps of a block,
// all of whose threads call it. `partial` is shared memory, free again after the block's next
// barrier.
template <bool kSum, bool kPeak>
__device__ SumAndPeak row_reduce(SumAndPeak value, SumAndPeak (&partial)[kMostWarps]) {
  if constexpr (kSum) value.sum = warp_sum(value.sum);
  if constexpr (kPeak) value.peak = warp_peak(value.peak);
  const unsigned warps = blockDim.x / kWarpSize;
  if (warps == 1) return value;
  const unsigned lane = threadIdx.x % kWarpSize;
  SumAndPeak* const own = partial + threadIdx.y * warps;
  if (lane == 0) own[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = lane < warps ? own[lane] : SumAndPeak{};
  if constexpr (kSum) value.sum = warp_sum(value.sum);
  if constexpr (kPeak) value.peak = warp_peak(value.peak);
  return value;
}
// Once per launch: its shared memory is not free for another call.
template <bool kSum, bool kPeak>
__device__ SumAndPeak row_reduce(SumAndPeak value) {
  __shared__ SumAndPeak partial[kMostWarps];
  return row_reduce<kSum, kPeak>(value, partial);
}

}  // namespace orrery

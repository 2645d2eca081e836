#pragma once

// Where the rows of a group begin, from counts on the device: prefix sums in shared memory.

#include <cstdint>

#include "kernels/cuda/reduce.cuh"

namespace orrery {

// The rank of the thread in its block, and of its block's threads how many there are.
__device__ inline int thread_of_block() {
  return static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
}
__device__ inline int threads_of_block() { return static_cast<int>(blockDim.x * blockDim.y); }

// values[i] becomes the sum of what was in values[0 .. i), values[count] the sum of all: shared
// memory of count + 1 elements. All threads of one warp call it. An odd number of values for each
// lane keeps the lanes on different banks.
__device__ inline void warp_prefix(std::int32_t* values, int count) {
  const int lane = thread_of_block() % kWarpSize;
  const int per_lane = ((count + kWarpSize - 1) / kWarpSize) | 1;
  const int begin = min(lane * per_lane, count);
  const int end = min(begin + per_lane, count);
  std::int32_t own = 0;
  for (int i = begin; i < end; ++i) own += values[i];
  std::int32_t before = own;
#pragma unroll
  for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
    const std::int32_t other = __shfl_up_sync(0xFFFFFFFFU, before, lanes);
    if (lane >= lanes) before += other;
  }
  std::int32_t sum = before - own;
  for (int i = begin; i < end; ++i) {
    const std::int32_t value = values[i];
    values[i] = sum;
    sum += value;
  }
  if (lane == kWarpSize - 1) values[count] = before;
}

inline constexpr int kMostGroups = 512;

// The first row of each of `groups` groups (up to kMostGroups), and after the last the sum of all;
// a group is `per_group` counts, of which negative ones count as 0. All threads of a block of whole
// warps call it, once per launch.
__device__ inline const std::int32_t* group_starts(const std::int32_t* counts, int groups,
                                                   int per_group) {
  __shared__ std::int32_t starts[kMostGroups + 1];
  for (int group = thread_of_block(); group < groups; group += threads_of_block()) {
    std::int32_t sum = 0;
    for (int i = 0; i < per_group; ++i) sum += max(counts[group * per_group + i], 0);
    starts[group] = sum;
  }
  __syncthreads();
  if (thread_of_block() < kWarpSize) warp_prefix(starts, groups);
  __syncthreads();
  return starts;
}

// The group that holds `row`, of starts[0] = 0 <= row < starts[groups]; empty groups hold none.
__device__ inline int group_of(const std::int32_t* starts, int groups, std::int64_t row) {
  int low = 0;
  int high = groups;  // starts[low] <= row < starts[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (starts[middle] <= row ? low : high) = middle;
  }
  return low;
}

}  // namespace orrery

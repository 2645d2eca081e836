#pragma once

// How the sums of a grouped gemm are rounded to Y, bf16 or fp16: to the nearest, beyond the range
// infinite.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/vector.cuh"

namespace orrery {

template <typename Y>
__device__ inline Y rounded(float value) {
  if constexpr (std::is_same_v<Y, fp16>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

template <typename Y>
__device__ inline std::uint32_t rounded_pair(float low, float high) {
  if constexpr (std::is_same_v<Y, fp16>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    return pack(low, high);
  }
}

}  // namespace orrery

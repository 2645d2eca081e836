#pragma once

// 16-byte vectors of eight bf16, the unit in which element-wise kernels read and write, and their
// conversions.

#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/cuda/dtypes.h"

namespace orrery {

inline constexpr int kVectorSize = 8;

// Data read once. Plain loads with plain stores: of all cache hints only evict-first on both sides
// is as fast; evict-first loads beside plain stores take 6 to 12 % off the stream (H200, 768 MB).
__device__ inline uint4 load_once(const bf16* x) { return *reinterpret_cast<const uint4*>(x); }
// Data that every block reads (weights, tables) and none writes: kept in the L1 cache.
__device__ inline uint4 load_constant(const bf16* x) {
  return __ldg(reinterpret_cast<const uint4*>(x));
}
__device__ inline void store(bf16* y, const uint4& vector) {
  *reinterpret_cast<uint4*>(y) = vector;
}

__device__ inline void unpack(const uint4& vector, float (&values)[kVectorSize]) {
  const std::uint32_t words[] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < kVectorSize / 2; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
  }
}

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline uint4 pack(const float (&values)[kVectorSize]) {
  return {pack(values[0], values[1]), pack(values[2], values[3]), pack(values[4], values[5]),
          pack(values[6], values[7])};
}

// Rounds to nearest and clamps to +-kFp8Max.
__device__ inline std::uint32_t pack_fp8(float a, float b, float c, float d) {
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}
__device__ inline void store_fp8(fp8* y, const float (&values)[kVectorSize]) {
  *reinterpret_cast<uint2*>(y) = {pack_fp8(values[0], values[1], values[2], values[3]),
                                  pack_fp8(values[4], values[5], values[6], values[7])};
}

// A vector as eight fp8, multiplied before it is rounded.
__device__ inline uint2 to_fp8(const uint4& vector, float multiplier) {
  float values[kVectorSize];
  unpack(vector, values);
#pragma unroll
  for (float& value : values) value *= multiplier;
  return {pack_fp8(values[0], values[1], values[2], values[3]),
          pack_fp8(values[4], values[5], values[6], values[7])};
}

// Below this an absolute maximum counts as this, so that its reciprocal stays finite.
inline constexpr float kLeastPeak = 1e-30f;

// What values are multiplied by before they are rounded to fp8, when their largest is `peak`; their
// scale is peak / kFp8Max.
__device__ inline float fp8_multiplier(float peak) { return kFp8Max / fmaxf(peak, kLeastPeak); }

// 1 / scale of a static scale. Throws std::invalid_argument when it is not positive.
inline float reciprocal_scale(const char* kernel, float scale) {
  if (!(scale > 0)) {
    throw std::invalid_argument(std::string(kernel) + ": scale is " + std::to_string(scale) +
                                ", expected a positive one");
  }
  return 1.0f / scale;
}

// True when vectors may be read from or written to all of these addresses.
template <typename... T>
bool vector_aligned(const T*... pointers) {
  constexpr std::uintptr_t kAlignment = 16;
  return ((reinterpret_cast<std::uintptr_t>(pointers) | ... | 0) % kAlignment) == 0;
}

}  // namespace orrery

#pragma once

// Logits as keys: 64-bit integers whose order is that of (value, falling id), so that the largest
// key is the largest logit with the lowest id, and no two keys of a row are equal.

#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace orrery {

using Key = unsigned long long;

// Order-preserving bits of a float; -0 counts as 0, NaN as -infinity.
__device__ inline std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(fmaxf(value, -INFINITY) + 0.0f);
  return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}
__device__ inline float value_of(Key key) {
  const auto bits = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float(bits & 0x80000000U ? bits & 0x7FFFFFFFU : ~bits);
}
__device__ inline Key key_of(float value, std::uint32_t id) {
  return static_cast<Key>(ordered(value)) << 32 | ~id;
}
__device__ inline std::uint32_t id_of(Key key) { return ~static_cast<std::uint32_t>(key); }

// 16 bytes of logits.
template <typename T>
struct LogitVector {
  static constexpr int kSize = 16 / sizeof(T);
  uint4 bits;

  __device__ void load(const T* row, std::int64_t vector) {
    bits = __ldcs(reinterpret_cast<const uint4*>(row) + vector);
  }
  __device__ void values(float (&out)[kSize]) const {
    if constexpr (kSize == kVectorSize) {
      unpack(bits, out);
    } else {
      out[0] = __uint_as_float(bits.x);
      out[1] = __uint_as_float(bits.y);
      out[2] = __uint_as_float(bits.z);
      out[3] = __uint_as_float(bits.w);
    }
  }
};

__device__ inline float as_float(float value) { return value; }
__device__ inline float as_float(bf16 value) { return __bfloat162float(value); }

}  // namespace orrery

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
__device__ inline Key key_of(std::uint32_t ordered_value, std::uint32_t id) {
  return static_cast<Key>(ordered_value) << 32 | ~id;
}
__device__ inline float value_of(Key key) {
  const auto bits = static_cast<std::uint32_t>(key >> 32);
  return __uint_as_float(bits & 0x80000000U ? bits & 0x7FFFFFFFU : ~bits);
}
__device__ inline std::uint32_t id_of(Key key) { return ~static_cast<std::uint32_t>(key); }

__device__ inline float as_float(float value) { return value; }
__device__ inline float as_float(bf16 value) { return __bfloat162float(value); }

// 16 bytes of logits. The maximum takes 8 bf16 or 4 fp32 by four instructions and skips NaN.
template <typename T>
struct LogitVector;

template <>
struct LogitVector<bf16> {
  static constexpr int kSize = 8;
  uint4 bits;

  __device__ void values(float (&out)[kSize]) const { unpack(bits, out); }
  __device__ float largest() const {
    const auto pair = [](std::uint32_t word) { return *reinterpret_cast<__nv_bfloat162*>(&word); };
    const __nv_bfloat162 most =
        __hmax2(__hmax2(pair(bits.x), pair(bits.y)), __hmax2(pair(bits.z), pair(bits.w)));
    return fmaxf(__low2float(most), __high2float(most));
  }
};

template <>
struct LogitVector<float> {
  static constexpr int kSize = 4;
  uint4 bits;

  __device__ void values(float (&out)[kSize]) const {
    out[0] = __uint_as_float(bits.x);
    out[1] = __uint_as_float(bits.y);
    out[2] = __uint_as_float(bits.z);
    out[3] = __uint_as_float(bits.w);
  }
  __device__ float largest() const {
    return fmaxf(fmaxf(__uint_as_float(bits.x), __uint_as_float(bits.y)),
                 fmaxf(__uint_as_float(bits.z), __uint_as_float(bits.w)));
  }
};

// Calls visit(vector, index) for each of the row's vectors that falls to this thread of `threads`,
// in rising order, with several loads in flight.
template <typename T, typename Visit>
__device__ void for_each_vector(const T* row, std::int64_t vectors, std::int64_t thread,
                                std::int64_t threads, Visit&& visit) {
  constexpr int kInFlight = 4;
  const auto* const from = reinterpret_cast<const uint4*>(row);
  for (std::int64_t first = thread; first < vectors; first += kInFlight * threads) {
    LogitVector<T> batch[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t at = first + i * threads;
      if (at < vectors) batch[i].bits = __ldcs(from + at);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const std::int64_t at = first + i * threads;
      if (at < vectors) visit(batch[i], at);
    }
  }
}

}  // namespace orrery

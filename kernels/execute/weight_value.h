#pragma once

// The value of one element of a weight: the same bits on host and device, so that a reference on
// the CPU multiplies what the GPU does.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "kernels/host_device.h"

namespace orrery {

// An fp8 weight is stored as this times the noise, with scale bound / this: e4m3's largest value.
inline constexpr float kFp8WeightRange = 448.0F;

// FNV-1a.
inline std::uint64_t weight_name_hash(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char letter : name) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001B3ULL;
  }
  return hash;
}

// The output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
ORRERY_HOST_DEVICE inline std::uint64_t weight_mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// The stream of SplitMix64 from which one copy of a weight is drawn.
ORRERY_HOST_DEVICE inline std::uint64_t weight_key(std::uint64_t seed, std::uint64_t name_hash,
                                                   std::int64_t copy) {
  return weight_mix(weight_mix(seed + 0x9E3779B97F4A7C15ULL) ^ name_hash) +
         weight_mix(static_cast<std::uint64_t>(copy) + 1);
}

// Uniform in [-1, 1), a multiple of 2^-23. `row` and `column` in the whole weight, below 2^32.
ORRERY_HOST_DEVICE inline float weight_noise(std::uint64_t key, std::int64_t row,
                                             std::int64_t column) {
  const std::uint64_t place =
      (static_cast<std::uint64_t>(row) << 32) | static_cast<std::uint64_t>(column);
  const std::uint64_t bits = weight_mix(key + (place + 1) * 0x9E3779B97F4A7C15ULL);
  constexpr std::int32_t kHalf = 1 << 23;
  return static_cast<float>(static_cast<std::int32_t>(bits >> 40) - kHalf) * 0x1p-23F;
}

// Before rounding to the format in which it is stored.
ORRERY_HOST_DEVICE inline float weight_value(float noise, float bound, bool is_gain) {
  return is_gain ? fmaf(bound, noise, 1.0F) : bound * noise;
}

// Bits of the nearest bf16, ties to even, of a finite value.
ORRERY_HOST_DEVICE inline std::uint16_t bf16_bits(float value) {
  std::uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace orrery

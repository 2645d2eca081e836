#pragma once

// The random numbers of sampling: a function of (seed, counter) without state, the same on host and
// device.

#include <cstdint>

#include "kernels/host_device.h"

namespace orrery {

// Uniform in [0, 1) with 53 bits: the output function of SplitMix64 (Steele, Lea, Flood, OOPSLA
// 2014) at position `counter` of the stream `seed`.
ORRERY_HOST_DEVICE inline double uniform(std::uint64_t seed, std::uint64_t counter) {
  std::uint64_t z = seed * 0xD1342543DE82EF95ULL + (counter + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

}  // namespace orrery

#pragma once

// A random stream that gives the same numbers on every machine: xoshiro256** (Blackman, Vigna,
// arXiv 1805.01407), seeded through splitmix64, and inverse distribution functions on it. The
// standard library's distributions are not reproducible across implementations.

#include <array>
#include <cstdint>

namespace orrery {

class Random {
 public:
  explicit Random(std::uint64_t seed);

  std::uint64_t next();
  // In (0, 1), 53 bits.
  double uniform();
  // Integer in [low, high], both ends included.
  std::int64_t uniform_integer(std::int64_t low, std::int64_t high);
  // Exponential with mean 1.
  double exponential();
  // Standard normal by the inverse of its distribution function.
  double normal();
  // Gamma with the given shape > 0 and scale 1 (Marsaglia, Tsang, ACM TOMS 26(3), 2000).
  double gamma(double shape);

 private:
  std::array<std::uint64_t, 4> state_{};
};

}  // namespace orrery

#include "sim/serve/random.h"

#include <bit>
#include <cmath>

#include "sim/units/inverse_normal.h"

namespace orrery {
namespace {

std::uint64_t splitmix64(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

}  // namespace

Random::Random(std::uint64_t seed) {
  for (std::uint64_t& word : state_) word = splitmix64(seed);
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17U;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double Random::uniform() {
  constexpr double kStep = 0x1.0p-53;
  return (static_cast<double>(next() >> 11U) + 0.5) * kStep;
}

std::int64_t Random::uniform_integer(std::int64_t low, std::int64_t high) {
  const auto span = static_cast<double>(high - low + 1);
  const auto offset = static_cast<std::int64_t>(uniform() * span);
  return low + offset;
}

double Random::exponential() { return -std::log(uniform()); }

double Random::normal() { return inverse_normal(uniform()); }

double Random::gamma(double shape) {
  if (shape < 1) {
    // gamma(a) = gamma(a + 1) U^(1/a)
    const double larger = gamma(shape + 1);
    return larger * std::pow(uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace orrery

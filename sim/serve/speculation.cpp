#include "sim/serve/speculation.h"

#include "sim/serve/random.h"

namespace orrery {

std::int64_t num_accepted(const Speculation& speculation, std::int64_t request,
                          std::int64_t generated) {
  // Odd factors keep keys of one seed apart; Random scrambles them.
  constexpr std::uint64_t kOfRequest = 0xD1B54A32D192ED03ULL;
  constexpr std::uint64_t kOfToken = 0x8CB92BA72F3D8DD7ULL;
  Random random(speculation.seed + static_cast<std::uint64_t>(request) * kOfRequest +
                static_cast<std::uint64_t>(generated) * kOfToken);
  std::int64_t accepted = 0;
  for (const double probability : speculation.acceptance) {
    if (random.uniform() >= probability) break;
    ++accepted;
  }
  return accepted;
}

double expected_tokens(const Speculation& speculation) {
  double sum = 1;
  double all = 1;
  for (const double probability : speculation.acceptance) {
    all *= probability;
    sum += all;
  }
  return sum;
}

}  // namespace orrery

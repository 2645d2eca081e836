#pragma once

// A rank class whose ranks run one chain of tasks, in the compact form that the closed form walks.

#include <cstdint>
#include <vector>

#include "sim/cost/corrections.h"
#include "sim/plan/plan.h"
#include "sim/units/energy.h"
#include "sim/units/units.h"

namespace orrery {

struct ChainStep {
  Seconds time;        // as Estimate
  Seconds limited;     // likewise
  Seconds arithmetic;  // likewise
  Joules energy;       // likewise
  OpId op = 0;
  enum class Kind : std::uint8_t {
    kGpu,         // kernel, or a collective within the class
    kRendezvous,  // collective with other classes: number `meeting`
    kHost,        // host op that waits for nothing but the host
    kHostSync     // host op that waits for the stream as well
  } kind = Kind::kGpu;
  std::int32_t meeting = -1;
  Launched launched = Launched::kRows;
};

// Steps [first, last) run `count` times in a row.
struct ChainSection {
  std::int32_t first = 0;
  std::int32_t last = 0;
  std::int64_t count = 1;
  bool has_gpu_only = false;  // no host steps and no rendezvous
  Seconds time;               // sum over the steps, one copy
};

struct Chain {
  int rank = 0;       // the representative
  int num_ranks = 1;  // ranks that it stands for
  std::vector<ChainStep> steps;
  std::vector<ChainSection> sections;
  // Classes meeting in a rendezvous: num_participants[meeting], the same table in every chain.
  std::vector<std::int32_t> num_participants;
};

}  // namespace orrery

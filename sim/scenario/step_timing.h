#pragma once

// How long simulating one step takes on this machine: for `orrery bench`.

#include <cstdint>

#include "sim/des/simulate.h"
#include "sim/model/model.h"
#include "sim/scenario/scenario.h"
#include "sim/units/units.h"

namespace orrery {

struct StepTiming {
  Seconds wall;   // median of the repetitions, the plan lowered and priced before
  Seconds lower;  // lowering, parallel passes and pricing, once
  Seconds makespan;
  std::int64_t num_ops = 0;  // repeats counted
  int num_ranks = 0;
};

// Times `repeats` >= 1 simulations of `batch` on one replica. Throws as simulate_step does.
StepTiming time_step(const Scenario& scenario, const Batch& batch, StepLevel level, int repeats);

}  // namespace orrery

#pragma once

// What a scenario says of experts whose load drifts or that are placed anew while it serves.

#include "sim/scenario/scenario.h"
#include "sim/serve/expert_steps.h"

namespace orrery {

bool has_changing_experts(const Scenario& side);

// Of the replicas of `side`, which is not disaggregated; `machine` outlives what is returned.
// Throws std::invalid_argument when experts cannot be placed as the scenario says.
ExpertChanges expert_changes(const Scenario& side, const Machine& machine);

}  // namespace orrery

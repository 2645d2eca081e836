#pragma once

// Which steps an engine can form at all.

#include <string>

#include "sim/plan/batch.h"
#include "sim/scenario/scenario.h"
#include "sim/serve/capacity.h"

namespace orrery {

// Throws std::invalid_argument, whose message begins with `name`, unless every sequence is within
// max_model_len and all together within the KV blocks of an instance, with those of their states.
void check_fits(const std::string& name, const Batch& batch, const Scenario& scenario,
                const MemoryBudget& memory);
// The same, and unless the step is within the scheduler's budgets of tokens and sequences.
void check_formed(const std::string& name, const Batch& batch, const Scenario& scenario,
                  const MemoryBudget& memory);

}  // namespace orrery

#pragma once

// Which steps an engine can form at all.

#include <cstdint>
#include <string>

#include "sim/plan/batch.h"
#include "sim/scenario/scenario.h"

namespace orrery {

// Throws std::invalid_argument, whose message begins with `name`, unless every sequence is within
// max_model_len and all together within the `num_kv_blocks` of an instance.
void check_fits(const std::string& name, const Batch& batch, const Scenario& scenario,
                std::int64_t num_kv_blocks);
// The same, and unless the step is within the scheduler's budgets of tokens and sequences.
void check_formed(const std::string& name, const Batch& batch, const Scenario& scenario,
                  std::int64_t num_kv_blocks);

}  // namespace orrery

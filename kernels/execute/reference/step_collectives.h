#pragma once

// Communication ops of a plan, each on all of its ranks at once, in double: collectives among
// equals (collective_call.h), rows to and from even parts, exchanges between two sides and between
// ranks that share contexts.

#include <cstdint>

#include "kernels/execute/reference/model_setup.h"
#include "kernels/execute/reference/rank_rows.h"
#include "kernels/execute/reference/rank_values.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

struct StepState {
  const ModelSetup& setup;
  const Plan& plan;
  const RankRows& rows;
  RankValues& values;
};

// `op` with a CommOp, in one copy of a repeat. Throws std::invalid_argument, naming the op, for a
// collective that it does not know and for a tensor that nothing has written.
void run_comm(const StepState& state, const Op& op, std::int64_t copy);

}  // namespace orrery::reference

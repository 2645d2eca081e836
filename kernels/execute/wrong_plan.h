#pragma once

// Plans made wrong on purpose, for checks that must notice it. No CUDA.

#include <string>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

// Names of the collectives and transfers of a plan, in its order.
std::vector<std::string> collective_names(const Plan& plan);

// The plan with ops of that name doing nothing: host ops in their place, which read and write
// nothing. Throws std::invalid_argument when there is none.
Plan without_op(const Plan& plan, std::string_view name);

// The plan with the op of that name behind the first op that reads what it writes, on one of its
// ranks. Throws std::invalid_argument when there is no such op.
Plan with_op_late(const Plan& plan, std::string_view name);

}  // namespace orrery

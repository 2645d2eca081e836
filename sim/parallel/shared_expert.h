#pragma once

// Which ops of a plan compute an expert that all tokens share.

#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

// By op: the FFN ops whose result is added to rows of routed experts. Dense layers have none.
std::vector<bool> shared_expert_ops(const Plan& plan);

}  // namespace orrery

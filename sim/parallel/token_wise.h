#pragma once

// Ops behind a norm that sequence parallelism may leave on each rank's share of the tokens.

#include <vector>

#include "sim/parallel/parallel.h"
#include "sim/plan/plan.h"

namespace orrery {

// By op: those that the mesh's attention_gather and moe_gather put before the gather. A token's
// result depends on that token alone and on weights that all tp ranks have whole. Ops that
// kernel specs call on the residual are not among them, since they are there whatever the mesh.
// Throws std::invalid_argument where the plan has none of the kind that is asked for.
std::vector<bool> ops_before_gather(const Plan& plan, const Mesh& mesh);

}  // namespace orrery

#pragma once

// What a layer of experts in one launch takes where its experts have a capacity.

#include "sim/machine/machine.h"
#include "sim/plan/plan.h"

namespace orrery {

// Whether experts of a fused_moe call may leave rows out: dim capacity_percent, beyond the tokens
// of a rank at most.
bool may_drop(const KernelOp& op);
KernelOp without_capacity(KernelOp op);

// Its time over that of the same call without a capacity: of the tiles of both, simulated on
// `device` (moe_tiles.h), at most 1. Tokens choose all experts alike. Tiles
// are of bf16: fp8, whose routing takes as long and whose tiles less, is said to save too much.
// Throws std::invalid_argument as simulate_moe_tiles.
double share_with_capacity(const KernelOp& op, const Device& device);

}  // namespace orrery

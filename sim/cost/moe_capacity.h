#pragma once

// What a layer of experts in one launch takes where its experts have a capacity, or tokens prefer
// some of them.

#include <span>

#include "sim/machine/machine.h"
#include "sim/plan/plan.h"

namespace orrery {

// Whether experts of a fused_moe call may leave rows out: dim capacity_percent, beyond the tokens
// of a rank at most.
bool may_drop(const KernelOp& op);
KernelOp without_capacity(KernelOp op);

// Its time over that of the same call without a capacity and with tokens that choose all experts
// alike: of the tiles of both, simulated on `device` (moe_tiles.h), of the rank that takes longest.
// `choices`: that a token chooses the expert of each place, rank after rank; empty: all alike, and
// then at most 1. Throws std::invalid_argument as simulate_moe_tiles.
double share_of_tiles(const KernelOp& op, const Device& device,
                      std::span<const double> choices = {});

}  // namespace orrery

#pragma once

// Attention's output projections: gemms that sum over heads. Their weights are what a large model
// holds most of besides its experts, heads * v_head_dim * hidden in each layer.

#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// False for attention modules that have the projection inside.
bool is_output_projection(const Op& op);

// Bytes of their weights in all layers that `rank` keeps; what is gathered for one layer at a time
// does not count. Throws std::invalid_argument for a negative rank.
Bytes output_projection_bytes(const Plan& plan, int rank);

}  // namespace orrery

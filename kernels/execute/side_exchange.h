#pragma once

// An all_to_all between two sides (sim/plan/sides.h): those that have rows send them, the others
// receive.

#include "kernels/execute/collective_binding.h"
#include "sim/plan/sides.h"

namespace orrery {

// All rows and their scales in one NCCL group, as side_rows() deals them out. Throws
// std::invalid_argument as that does, and for rows of other widths on the two sides.
Launch bind_side_exchange(const CollectiveContext& context, const Sides& sides);

}  // namespace orrery

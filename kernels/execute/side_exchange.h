#pragma once

// What moves one way (sim/plan/sides.h, one_way()): those that have rows send them, the others
// receive.

#include "kernels/execute/collective_binding.h"
#include "sim/plan/sides.h"

namespace orrery {

// All rows and their scales, as side_rows() deals them out. Where ranks reach each other's memory
// senders copy them to where they are wanted and set a flag, for which receivers wait: neither
// takes an SM. Else one NCCL group. Throws std::invalid_argument as side_rows(), and for rows of
// other widths on the two sides.
Launch bind_side_exchange(const CollectiveContext& context, const Sides& sides);

}  // namespace orrery

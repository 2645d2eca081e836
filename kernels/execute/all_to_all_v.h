#pragma once

// all_to_all of rows by counts that the host knows: as many to and from each rank as there are.

#include "kernels/execute/collective_binding.h"

namespace orrery {

// Of an op that reads rows, counts of what is sent and counts of what is received, and writes rows
// (bind_collective says how). Throws std::invalid_argument, also for counts that no d2h_sync op
// before it has copied.
Launch bind_all_to_all_v(const CollectiveContext& context);

}  // namespace orrery

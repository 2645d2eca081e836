#pragma once

// Collectives of slices of columns: what a rank sends lies between columns that it does not.

#include "kernels/execute/collective_binding.h"

namespace orrery {

// Whether the op sends slices (rank_program.h).
bool sends_slice(const CollectiveContext& context);

// The op with the rank's slice, packed into scratch memory, in place of what it reads first. Throws
// std::invalid_argument where the slice is not one stretch of what is read.
Launch bind_slice(const CollectiveContext& context);

}  // namespace orrery

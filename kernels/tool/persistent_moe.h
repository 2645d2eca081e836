#pragma once

// Steps of a small mixture of experts whose layers are one kernel over two ranks, of one process or
// of two.

#include <cstdint>
#include <vector>

#include "kernels/comm/processes/process_group.h"
#include "sim/plan/plan.h"

namespace orrery::tool {

// The tokens that it samples, step by step, of ranks with unlike batches, eagerly and then from a
// graph: the same on all processes. Alone a process has both ranks, on its first two GPUs. Throws
// what the executor throws.
std::vector<std::int32_t> tokens_of_persistent_moe(const ProcessGroup& processes, DType dtype);

}  // namespace orrery::tool

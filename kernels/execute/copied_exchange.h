#pragma once

// all_to_all of rows by counts that the host knows, by copy engines (CommOp::is_copied).

#include "kernels/execute/collective_binding.h"

namespace orrery {

// As bind_all_to_all_v(), among GPUs of this process that reach each other's memory: a rank's
// thread waits for those of the others, which enqueue the same exchange. A launch throws
// RankAbandoned when another rank fails meanwhile, std::runtime_error for counts that contradict
// each other. Throws std::invalid_argument likewise.
Launch bind_copied_exchange(const CollectiveContext& context);

}  // namespace orrery

#pragma once

// The exchange of context-parallel ranks after attention to their parts of the keys.

#include "kernels/execute/collective_binding.h"

namespace orrery {

// Whether the op is an all_to_all that gives each rank its share of the heads, or of the rows, over
// all parts: [rows, heads] of each rank into [parts, rows, heads / ranks] or [parts, rows / ranks,
// heads].
bool deals_heads(const CollectiveContext& context);

// Each tensor's columns packed by the rank they go to, then all tensors in one NCCL group. Throws
// std::invalid_argument where a result is not as large as what is read.
Launch bind_head_exchange(const CollectiveContext& context);

}  // namespace orrery

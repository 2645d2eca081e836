#pragma once

// What the bindings of combine_shuffling and split_shuffling share.

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/combine_shuffling/combine_shuffling.h"

namespace orrery {

struct BoundShuffling {
  ShuffledCounts counts;
  ShuffledRows rows;
};

// Of an op that reads rows and recv_counts [ranks, experts], and writes rows first; `combines`: the
// rank-major side is what it reads. That side is dense, [rows, hidden], or [ranks, bound, hidden].
// Throws std::invalid_argument for operands that do not fit.
BoundShuffling bind_shuffling(const BindContext& context, bool combines);

}  // namespace orrery

#pragma once

// Whether what ranks have of a tensor is the whole of it: the part of `verify` that is about
// splits.

#include "sim/plan/plan.h"

namespace orrery {

// Throws std::invalid_argument unless, for each axis that is split, the size on a rank is that of
// its shares, and the tensor's ranks (and micro-batches) together have each element, along all
// split axes at once: two axes over the same ranks would leave out whatever lies off the diagonal.
void check_shards(const Plan& plan, const Tensor& tensor);

// Throws std::invalid_argument where two of an op's tensors have an axis of one name that are split
// over other ranks, such as columns of a weight and those that they are multiplied with.
void check_alike(const Plan& plan, const Op& op);

}  // namespace orrery

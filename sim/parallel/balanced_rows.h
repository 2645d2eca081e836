#pragma once

// Which ops of a step look at sequences where data-parallel ranks hold even parts of its rows
// (DpRows), and so work on the rows of each rank's own sequences.

#include <vector>

#include "sim/parallel/parallel.h"
#include "sim/plan/plan.h"

namespace orrery {

struct OwnRows {
  std::vector<bool> ops;      // attention, and what lies between the gather and its results
  std::vector<bool> tensors;  // what they write, but for columns of what others have written
};
// Nothing is where mesh.dp_rows is own. Before the data pass and behind it the answer is the same.
// Throws std::invalid_argument, naming the op, where one op holds all of attention.
OwnRows own_rows(const Plan& plan, const Mesh& mesh);

}  // namespace orrery

#pragma once

// How busy attention ranks and FFN ranks are in a step where they are not the same.

#include <string>
#include <vector>

#include "sim/parallel/parallel.h"
#include "sim/plan/plan.h"
#include "sim/timeline/timeline.h"

namespace orrery {

// Of the first rank of a side.
struct StepSide {
  std::string side;  // "attention" or "ffn"
  int num_ranks = 0;
  Seconds bubble;    // in which it neither computes nor talks to ranks of its side
  Seconds exposed;   // of these, with rows on the way from or to the other side
  double share = 0;  // of the bubble, in the step
};
// Empty where FFNs lie on the ranks of attention.
std::vector<StepSide> step_sides(const Plan& plan, const Timeline& timeline, const Mesh& mesh);

}  // namespace orrery

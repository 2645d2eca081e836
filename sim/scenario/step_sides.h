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
  // Of one micro-batch in one layer, means over the step: its work there, head and sampling left
  // out, and how long what it sends to the other side is on the way. T_a, T_f and T_c of
  // MegaScale-Infer (arXiv 2504.02263, section 4.1).
  Seconds turn;
  Seconds way;
};
// Empty where FFNs lie on the ranks of attention.
std::vector<StepSide> step_sides(const Plan& plan, const Timeline& timeline, const Mesh& mesh);

}  // namespace orrery

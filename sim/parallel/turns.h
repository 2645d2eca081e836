#pragma once

// Micro-batches of a step that take turns on the compute streams of its ranks, wherever one waits
// for what others send it.

#include "sim/parallel/rewrite.h"

namespace orrery {

struct TurnRules {
  int num_batches = 2;
  bool (*is_awaited)(const Plan& plan,
                     const Op& op) = nullptr;  // what reads its results begins a turn
  int awaited_stream = -1;                     // that such ops move to; -1: they stay
  bool takes_turns = true;  // else each layer (or run of ops) of one micro-batch before the next
};
// `plan` is of one micro-batch: each op as often as there are micro-batches. Weights, and what
// gathers them, are shared.
Plan take_turns(const Plan& plan, const TurnRules& rules);

}  // namespace orrery

#pragma once

// What the lowerings of routed experts share.

#include "sim/model/blocks/blocks.h"

namespace orrery {

// gate_up [experts, 2 expert_ffn, hidden], down [experts, hidden, expert_ffn].
struct ExpertWeights {
  DType dtype = DType::kBf16;
  TensorId gate_up = -1;
  TensorId down = -1;
};
ExpertWeights expert_weights(Lowering& step);

// Designs other than kFused (blocks/moe_designs.cpp): the bf16 rows `normed` through router, routed
// and shared experts into `output`, which is not read. REQUIRES: check_moe_design.
void lower_moe_design(Lowering& step, TensorId normed, TensorId output, bool imposes_scores);

}  // namespace orrery

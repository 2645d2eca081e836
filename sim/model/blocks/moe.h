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

// The shared expert over `input`, -1 where the model has none: gated by `normed` where it is.
TensorId lower_shared_expert(Lowering& step, TensorId normed, TensorId input);
// Into `output`, behind both.
void add_shared_expert(Lowering& step, TensorId routed, TensorId shared, TensorId output);

// Designs of ops by themselves (blocks/moe_designs.cpp): the bf16 rows `normed` through router,
// routed and shared experts into `output`, which is not read. REQUIRES: check_moe_design.
void lower_moe_design(Lowering& step, TensorId normed, TensorId output, bool imposes_scores);

// Design kPersistent (blocks/persistent_moe.cpp), likewise, and what it does not take: throws
// std::invalid_argument that says what would be.
void lower_persistent_moe(Lowering& step, TensorId normed, TensorId output);
void check_persistent_moe(const ModelConfig& model, const LoweringOptions& options);

}  // namespace orrery

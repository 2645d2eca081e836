#pragma once

// The plan of a step as GPUs execute it: sequences are dealt out in order, and in two halves of a
// rank as sim/plan/halves.h says. All parts have the rows of whichever has most; both halves of a
// plan are alike, so attention of either is priced as that of an average half.

#include "sim/model/step_shape.h"
#include "sim/parallel/parallel.h"

namespace orrery {

// Throws std::invalid_argument where halves of prompts with latent attention differ in keys, of
// which a plan gathers as many for all.
Plan executed_plan(const ModelConfig& model, const Batch& batch, const LoweringOptions& options,
                   const Mesh& mesh);

}  // namespace orrery

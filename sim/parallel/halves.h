#pragma once

// The plan of a step as GPUs execute it: sequences are dealt out in order, and in two halves of a
// rank as sim/plan/halves.h says. All parts have the rows, and the keys of prompts, of whichever
// has most; all parts of a plan are alike, so attention of each is priced as that of an average
// one. Where data-parallel ranks have even parts of all rows (DpRows), these are of the tokens that
// there are.

#include "sim/model/step_shape.h"
#include "sim/parallel/parallel.h"

namespace orrery {

Plan executed_plan(const ModelConfig& model, const Batch& batch, const LoweringOptions& options,
                   const Mesh& mesh);

}  // namespace orrery

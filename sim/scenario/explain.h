#pragma once

// How the times of a step come about: for each op the rows that they are from and what each
// correction did, and what the corrections of a step did to their sum.

#include <map>
#include <string>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/step_sides.h"
#include "sim/serve/step_corrections.h"

namespace orrery {

struct ExplainedOp {
  std::string name;
  std::string call;         // "gemm bf16 m=64 n=4096 k=4096"
  std::int64_t copies = 1;  // in a step
  PriceExplanation price;
};

struct StepExplanation {
  LaunchMode mode = LaunchMode::kGraph;
  bool plans_attention = false;               // the engine does so for each shape of it, once
  bool prepares = false;                      // and products for numbers of rows that are new
  std::vector<ExplainedOp> ops;               // of the first rank (of each side), in order
  Bytes weights;                              // on that rank
  Bytes output_projections;                   // of these, weights of attention's output projections
  Seconds device;                             // time of the plan, one step at the full clock
  std::map<std::string, Seconds> deviations;  // of it, by kernel or collective: step_deviations
  std::vector<AppliedStepCorrection> corrections;
  Seconds duration;             // with the host
  std::vector<StepSide> sides;  // of a placement with FFNs apart
};

// One step of `batch` of a replica that has the full clock and `known` of the steps before: unless
// said otherwise its numbers of rows, and no attention of as many queries and keys. Throws
// ScenarioError as simulate_step does.
StepExplanation explain_step(const Scenario& scenario, const Batch& batch,
                             KnownToHost known = {.rows = true, .attention = false});

}  // namespace orrery

#pragma once

// A third interpreter of plans, to hold the second against: every rank of a plan and its
// collectives in double precision on the CPU, with the weights that the GPUs have. No CUDA.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/rope/reference.h"
#include "kernels/binding/step_input.h"
#include "kernels/execute/reference/model_setup.h"
#include "kernels/execute/reference/rank_values.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

// Scores that something else has found, by rank: of each routing_scores op and copy.
using GivenScores = std::vector<std::map<std::pair<OpId, std::int64_t>, std::vector<float>>>;

// Tensors of a layer by itself (is_layer_plan), by rank and name.
using LayerTensors = std::vector<std::map<std::string, std::vector<double>>>;

struct StepResult {
  std::vector<double> logits;             // [sampled rows, vocab]
  std::vector<std::int32_t> next_tokens;  // [sampled rows]
  std::int64_t vocab = 0;
  // Of scores that were given, from what is found here. Experts are chosen by those given.
  double score_difference = 0;
};

class StepRun;

// One deployment: weights and caches of all ranks, kept from step to step.
class Model {
 public:
  explicit Model(ModelSetup setup);
  // Runs a step of any batch. Throws std::invalid_argument, naming the op, for a kernel or
  // collective that it does not know or a tensor that nothing has written, and where the input does
  // not fit the plan.
  StepResult run(const Plan& plan, const StepInput& input, const GivenScores& given = {});
  // The outputs of a layer by itself for its inputs, of which those not given are zeros. Throws
  // likewise.
  LayerTensors run_layer(const Plan& plan, const LayerTensors& inputs);

 private:
  friend class StepRun;

  ModelSetup setup_;
  RopeTables rope_;
  std::vector<KeptByRank> ranks_;
};

}  // namespace orrery::reference

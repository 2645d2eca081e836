#pragma once

// One layer of routed and shared experts alone: what a design costs in time, memory, launches and
// host syncs.

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/experts/fused_moe/buffers.h"
#include "sim/cost/cost.h"
#include "sim/cost/moe_tiles.h"
#include "sim/des/simulate.h"
#include "sim/machine/machine_link.h"
#include "sim/plan/plan.h"
#include "sim/scenario/scenario.h"
#include "sim/timeline/timeline.h"
#include "sim/units/units.h"

namespace orrery {

// What the first rank does in one run of a plan.
struct PlanCounts {
  std::int64_t kernels = 0;      // launched; experts without rows are not
  std::int64_t collectives = 0;  // that it takes part in
  std::int64_t syncs = 0;        // of the host with the device
};
PlanCounts count_ops(const Plan& plan);

// Throws std::invalid_argument, naming the op, where the host waits in a layer that is to be a
// graph.
void check_layer_mode(LaunchMode mode, const Plan& plan);

struct MoeLayerRequest {
  std::int64_t tokens = 0;  // of the whole instance
  LaunchMode mode = LaunchMode::kGraph;
  StepLevel level = StepLevel::kAllRanks;
  bool imposes_scores = false;  // moe_layer_plan
};

// One kernel that is the layer.
struct MoeKernel {
  FusedMoeShape shape;
  FusedMoeMemory buffers;  // on each GPU, besides activations
  Bytes symmetric_layout;  // FlashDMoE's of its tokens in bf16: symmetric_layout_estimate
  MoeTileTimes times;      // of its tiles on the machine's GPUs
  int num_sms = 0;
  std::vector<double> choices;         // MoeTileOptions::choices
  std::optional<NetworkLink> network;  // between hosts of the machine, where it has one
};

struct MoeLayerResult {
  MoeLayerRequest request;
  Plan whole;  // of one rank, as lowered
  Plan plan;   // on the ranks of the scenario's mesh
  Timeline timeline;
  Seconds duration;
  BasisSeconds basis;  // of the first rank
  // The first rank's.
  Bytes weights;
  Bytes activations;  // at their peak
  PlanCounts counts;
  Bytes bytes_read;     // least that its kernels read
  Bytes bytes_written;  // and write
  std::optional<MoeKernel> kernel;
};

// Throws ScenarioError where the scenario cannot compute the layer, and std::invalid_argument when
// a graph is asked for and the host reads counts, or tokens < 1.
MoeLayerResult simulate_moe_layer(const Scenario& scenario, const MoeLayerRequest& request);

}  // namespace orrery

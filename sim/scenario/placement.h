#pragma once

// Where a service runs: `placement`, or `disaggregation` with a placement for prompts and one for
// decodes.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/machine/machine.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/scenario/reader.h"
#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

// Which expert each slot of the ranks holds (sim/parallel/expert_placement.h).
//   kInOrder   experts in order, then copies of the first ones
//   kBalanced  placed and copied by the expert load, so that ranks have equal work
//   kOnNodes   the same on two levels: groups of experts (n_group) to nodes, then within each node
enum class ExpertOrder : std::uint8_t { kInOrder, kBalanced, kOnNodes };

struct Placement {
  int replicas = 1;
  Mesh mesh;
  ExpertOrder expert_order = ExpertOrder::kInOrder;
};

// Sets mesh.expert_load: `load`, of the model's experts, as the slots of the ranks have it. Throws
// std::invalid_argument when slots cannot be dealt out so: see balance_experts_on_nodes; kOnNodes
// needs ranks of more than one node that each holds whole blocks.
void place_experts(Placement& placement, const ExpertLoad& load, const ModelConfig& model,
                   const MachineSpec& machine);

// One side of a disaggregated service; limits that are not given are those of `engine`.
struct SidePlacement {
  Placement placement;
  std::optional<std::int64_t> max_num_seqs;
  std::optional<std::int64_t> max_num_batched_tokens;
  std::optional<double> gpu_memory_utilization;
};

// How fast KV blocks move between two GPUs; what is not given is measured or the link's.
struct TransferSpec {
  std::optional<BytesPerSecond> rate;
  std::optional<Seconds> latency;
};

struct Disaggregation {
  SidePlacement prefill;
  SidePlacement decode;
  TransferSpec transfer;
};

// Throw ScenarioError: keys and values, a mesh that cannot hold the model, more GPUs than the
// machine has, and sides between which KV blocks cannot move as they are.
Placement read_placement(const YamlNode& node, const ModelConfig& model,
                         const MachineSpec& machine);
Disaggregation read_disaggregation(const YamlNode& node, const ModelConfig& model,
                                   const MachineSpec& machine);

// "placement:" and "disaggregation:" with every key, for resolved scenarios.
std::string to_yaml(const Placement& placement);
std::string to_yaml(const Disaggregation& disaggregation);

// `engine` with the limits of `side`.
EngineConfig engine_of(const SidePlacement& side, EngineConfig engine);
[[nodiscard]] int num_gpus(const Placement& placement);

}  // namespace orrery

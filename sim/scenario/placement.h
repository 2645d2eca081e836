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
#include "sim/scenario/machine_setting.h"
#include "sim/scenario/reader.h"
#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

struct Placement {
  int replicas = 1;
  Mesh mesh;
};

// One side of a disaggregated service; limits that are not given are those of `engine`.
struct SidePlacement {
  Placement placement;
  std::optional<std::int64_t> max_num_seqs;
  std::optional<std::int64_t> max_num_batched_tokens;
  std::optional<double> gpu_memory_utilization;
  std::optional<DType> kv_cache;  // where it is not the model's
  // Those of the model where they are not said; with `weights`, routed experts are in that format
  // too unless `expert_weights` is said beside it.
  std::optional<DType> weights;
  std::optional<DType> expert_weights;
  std::optional<DType> activations;
};

// How fast KV blocks move between two GPUs; what is not given is measured or the link's.
struct TransferSpec {
  std::optional<BytesPerSecond> rate;
  std::optional<Seconds> latency;
  bool layerwise = false;  // layers move while later ones of the prompt's last step are computed
};

struct Disaggregation {
  SidePlacement prefill;
  SidePlacement decode;
  TransferSpec transfer;
  // Where a side names a machine, a provider or a price: the prefill side's. The decode side's is
  // the scenario's.
  std::optional<MachineSetting> prefill_setting;
  bool has_two_machines = false;  // the sides' GPUs are from machines of their own
  std::string unused_machine;     // that the scenario names beside those of both sides
};

// The machines that sides have their GPUs from.
struct SideMachines {
  const MachineSpec* prefill = nullptr;
  const MachineSpec* decode = nullptr;
  bool are_two = false;  // else both are the same one
};

// Whether ranks of both sides hold the same layers and heads of a KV cache, in the same format.
[[nodiscard]] bool held_alike(const Disaggregation& disaggregation);

// Throw ScenarioError: keys and values, a mesh that cannot hold the model, more GPUs than a
// machine has, sides that hold KV caches unlike which cannot be re-sharded, and two machines
// without a link that is known or said. `kv_cache`: the model's format of them.
// Throws ScenarioError where a layer of experts that is one kernel (moe.design persistent) cannot
// lie on the mesh of `node`, a placement: with what that takes, which is less than any other
// layer's.
void check_placed_as_one_kernel(const YamlNode& node, const ModelConfig& model);
Placement read_placement(const YamlNode& node, const ModelConfig& model,
                         const MachineSpec& machine);
// Likewise with FFNs on a machine of their own, `ffn`, and the link to it.
FfnSide read_ffn_side(const YamlNode& placement, const Placement& placed,
                      const MachineSpec& machine, MachineSetting ffn);
Disaggregation read_disaggregation(const YamlNode& node, const ModelConfig& model, DType kv_cache,
                                   const SideMachines& machines);

// "placement:" and "disaggregation:" with every key, for resolved scenarios. `decode`: the decode
// side's setting, which is written where prefill has one of its own.
std::string to_yaml(const Placement& placement, const std::optional<FfnSide>& ffn);
std::string to_yaml(const Disaggregation& disaggregation, const MachineSetting& decode);
// "machine: {...}" and "provider: ...", each in a line behind `indent`.
std::string machine_yaml(const MachineSetting& setting, const std::string& indent);
std::string provider_yaml(const MachineSetting& setting, const std::string& indent);

// The formats of `side`, of a model with `precision`.
Precision precision_of(const SidePlacement& side, Precision precision);
// `engine` with the limits of `side`.
EngineConfig engine_of(const SidePlacement& side, EngineConfig engine);
[[nodiscard]] int num_gpus(const Placement& placement);

}  // namespace orrery

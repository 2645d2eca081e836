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
};

// Whether ranks of both sides hold the same layers and heads of a KV cache, in the same format.
[[nodiscard]] bool held_alike(const Disaggregation& disaggregation);

// Throw ScenarioError: keys and values, a mesh that cannot hold the model, more GPUs than the
// machine has, and sides that hold KV caches unlike which cannot be re-sharded. `kv_cache`: the
// model's format of them.
Placement read_placement(const YamlNode& node, const ModelConfig& model,
                         const MachineSpec& machine);
Disaggregation read_disaggregation(const YamlNode& node, const ModelConfig& model, DType kv_cache,
                                   const MachineSpec& machine);

// "placement:" and "disaggregation:" with every key, for resolved scenarios.
std::string to_yaml(const Placement& placement);
std::string to_yaml(const Disaggregation& disaggregation);

// `engine` with the limits of `side`.
EngineConfig engine_of(const SidePlacement& side, EngineConfig engine);
[[nodiscard]] int num_gpus(const Placement& placement);

}  // namespace orrery

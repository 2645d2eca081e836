#pragma once

// How a scenario computes routed experts and how evenly tokens choose them.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sim/model/expert_drift.h"
#include "sim/model/expert_load.h"
#include "sim/model/model.h"
#include "sim/parallel/expert_placement.h"
#include "sim/parallel/link_placement.h"
#include "sim/parallel/parallel.h"
#include "sim/scenario/reader.h"
#include "sim/serve/expert_balance.h"

namespace orrery {

// Which rank holds which routed experts (sim/parallel/expert_placement.h, link_placement.h).
enum class ExpertOrder : std::uint8_t { kInOrder, kBalanced, kBalancedOnNodes, kByLinks };

// `moe: {design: shuffling, streams: 2, chunks: 2}`, of a scenario or a profile.
struct MoeSpec {
  MoeDesign design = MoeDesign::kFused;
  int streams = 1;
  bool fuse_scatter_add = false;
  bool fuse_gather = false;
  bool shared_inside = false;
  std::int64_t capacity_percent = 0;            // 100 times capacity_factor; 0: none
  int chunks = 1;                               // Mesh::moe_chunks
  ExpertOrder experts = ExpertOrder::kInOrder;  // ep > 1; at the start, where they move
  std::optional<EplbConfig> eplb;               // none: they stay
  std::string backend;  // of design fused, whose rows: CostOptions::moe_backend; "": any
  bool operator==(const MoeSpec&) const = default;
};

// What the node states goes before `defaults`; a design other than the default's starts from
// streams 1, chunks 1 and no fusion. Throws ScenarioError on an unknown key or design, streams
// other than 1 and 2, chunks that are no whole number from 1 to 64.
MoeSpec read_moe(const YamlNode& node, const MoeSpec& defaults);
std::string to_yaml(const MoeSpec& spec);
// Of one layer of validate.layers: all keys but those that say which rank holds which experts.
std::string layer_moe_yaml(const MoeSpec& spec);
void set_moe(const MoeSpec& spec, LoweringOptions& options);
// Whether the host reads counts in the middle of a step, which no graph can hold.
bool has_host_syncs(const MoeSpec& spec, const Mesh& mesh);

// How evenly tokens choose experts, as the benchmarks of the tables name it: every expert the same,
// at random, or with a share falling as a power of its rank.
enum class ExpertSkew : std::uint8_t { kBalanced, kUniform, kPowerLaw101, kPowerLaw12 };
std::string_view to_text(ExpertSkew skew);  // "balanced", "uniform", "power_law_1.01", ...

// `drift: {interval: 10 s, share: 0.1}`; without a share a trace has the loads of the intervals.
struct DriftSpec {
  Seconds interval;
  double share = 0;
  bool operator==(const DriftSpec&) const = default;
};

// `expert_load: uniform`, or {zipf: EXPONENT} or {trace: FILE}, with a `seed` that draws which
// experts are chosen most, and perhaps a drift.
struct ExpertLoadSpec {
  ExpertSkew skew = ExpertSkew::kPowerLaw101;  // of the tables of the fused design
  double zipf = -1;                            // below 0: not given
  std::string trace;                           // a file, columns of sim/model; "": not given
  std::uint64_t seed = 1;
  std::optional<DriftSpec> drift;
  bool operator==(const ExpertLoadSpec&) const = default;
  [[nodiscard]] bool is_skew() const { return zipf < 0 && trace.empty(); }
};

// `key` of `reader`. Throws ScenarioError with the place.
ExpertLoadSpec read_expert_load(const Reader& reader, std::string_view key);
std::string to_yaml(const ExpertLoadSpec& spec);

// What lies between the ranks that hold the experts of a mesh.
struct ExpertSite {
  int gpus_per_node = 8;
  // Of experts by_links alone: those of blocks of experts, and what a layer does with a step.
  BlockLinks links;
  ExpertWork work;
};

// Sets which experts and copies the slots of `mesh` hold (Mesh::expert_of_slot), and their load.
// Throws std::invalid_argument when experts cannot be placed so (nodes that do not divide groups of
// experts, ...).
void place_experts(const ExpertLoad& load, const MoeSpec& spec, const ModelConfig& model,
                   const ExpertSite& site, Mesh& mesh);
// Where `mesh` holds them at the start. Throws likewise.
ExpertPlacement first_placement(const ExpertLoad& load, const MoeSpec& spec,
                                const ModelConfig& model, const Mesh& mesh, const ExpertSite& site);
// Where a rebalance puts them by how often each is chosen: on nodes where spec.experts says so, and
// from in_order where nodes, groups and copies let it, as vLLM and SGLang do; by_links likewise
// where a token chooses within a part of the groups, and then by the links; else on one level.
ExpertPlacement rebalanced(std::span<const double> choices, const MoeSpec& spec,
                           const ModelConfig& model, const Mesh& mesh, const ExpertSite& site);

// Loads of the model's experts, of which one stays where nothing drifts; a trace is looked for
// beside the scenario, then under `root`. Throws std::invalid_argument on a malformed or missing
// trace, or a model without experts whose load is given by zipf or trace.
ExpertDrift expert_drift(const ExpertLoadSpec& spec, const ModelConfig& model,
                         const std::filesystem::path& directory, const std::filesystem::path& root);

}  // namespace orrery

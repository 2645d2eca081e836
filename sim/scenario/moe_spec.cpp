#include "sim/scenario/moe_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "sim/model/expert_load_sources.h"
#include "sim/parallel/expert_placement.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/named_files.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"
#include "sim/units/text_file.h"

namespace orrery {

namespace {

// Exponents of the two power laws.
constexpr double kMoreEven = 1.2;
constexpr double kLessEven = 1.01;

// Of a routing trace, which is read whole: some 10^8 choices of 8 experts.
constexpr std::uint64_t kMostTraceBytes = 4'000'000'000;

EplbConfig read_eplb(const Reader& parent) {
  EplbConfig eplb;
  const Reader reader(parent.at("eplb"), parent.path_of("eplb"), key_names("eplb"));
  if (reader.has("step_interval")) eplb.step_interval = reader.integer("step_interval");
  if (reader.has("window_size")) eplb.window_size = reader.integer("window_size");
  if (reader.has("layers_per_step")) eplb.layers_per_step = reader.integer("layers_per_step");
  if (reader.has("layer_overhead")) {
    eplb.layer_overhead = reader.seconds("layer_overhead", /*zero_allowed=*/true);
  }
  return eplb;
}

// With its key; nothing where experts stay.
std::string eplb_yaml(const std::optional<EplbConfig>& eplb) {
  if (!eplb) return "";
  return ", eplb: {step_interval: " + std::to_string(eplb->step_interval) +
         ", window_size: " + std::to_string(eplb->window_size) +
         (eplb->layers_per_step > 0 ? ", layers_per_step: " + std::to_string(eplb->layers_per_step)
                                    : std::string()) +
         ", layer_overhead: " + format_number(eplb->layer_overhead.value()) + " s}";
}

DriftSpec read_drift(const Reader& parent) {
  const Reader reader(parent.at("drift"), parent.path_of("drift"), key_names("drift"));
  reader.require({"interval"});
  DriftSpec drift{.interval = reader.seconds("interval")};
  if (reader.has("share")) drift.share = reader.number("share", 0, 1, /*above=*/true);
  return drift;
}

// Likewise.
std::string drift_yaml(const std::optional<DriftSpec>& drift) {
  if (!drift) return "";
  return ", drift: {interval: " + format_number(drift->interval.value()) + " s" +
         (drift->share > 0 ? ", share: " + format_number(drift->share) : std::string()) + "}";
}

// Plans have whole dims, so of a hundredth.
std::int64_t read_capacity_percent(const Reader& reader) {
  const double factor = reader.number("capacity_factor", 0, kMostCapacityFactor, /*above=*/true);
  constexpr double kRounding = 1e-9;
  const double percent = std::round(factor * 100);
  if (percent >= 1 && std::abs(factor * 100 - percent) < kRounding * factor * 100) {
    return std::llround(percent);
  }
  const double below = std::max(std::floor(factor * 100), 1.0);
  reader.fail("capacity_factor",
              "found '" + format_number(factor) + "'; expected hundredths, such as " +
                  format_number(below / 100) + " or " + format_number((below + 1) / 100));
}

std::string capacity_yaml(const MoeSpec& spec) {
  if (spec.capacity_percent == 0) return "";
  return ", capacity_factor: " + format_number(static_cast<double>(spec.capacity_percent) / 100);
}

std::int64_t num_stage_ranks(const Mesh& mesh) {
  return static_cast<std::int64_t>(mesh.dp) * mesh.tp;
}

std::int64_t num_nodes(const Mesh& mesh, int gpus_per_node) {
  return (num_stage_ranks(mesh) + gpus_per_node - 1) / gpus_per_node;
}

// Whether each node has whole blocks of neighbouring experts.
bool has_nodes_of_neighbours(const Mesh& mesh, int gpus_per_node) {
  const bool has_blocks_apart = mesh.tp > 1 && mesh.ep != mesh.dp;
  return num_nodes(mesh, gpus_per_node) == 1 ||
         (num_stage_ranks(mesh) % gpus_per_node == 0 && !has_blocks_apart);
}

ExpertPlacement on_nodes(std::span<const double> choices, const ModelConfig& model,
                         const Mesh& mesh, int gpus_per_node) {
  if (!has_nodes_of_neighbours(mesh, gpus_per_node)) {
    throw std::invalid_argument(
        "experts balanced_on_nodes with dp " + std::to_string(mesh.dp) + ", tp " +
        std::to_string(mesh.tp) + ", ep " + std::to_string(mesh.ep) + " on nodes of " +
        std::to_string(gpus_per_node) +
        " GPUs, expected whole nodes with neighbouring experts on each (tp 1, or ep = dp)");
  }
  return balance_experts_on_nodes(choices, mesh.num_redundant_experts, mesh.ep,
                                  num_nodes(mesh, gpus_per_node), model.n_group);
}

// vLLM and SGLang go by nodes where these divide the groups (deepseek-ai/EPLB, rebalance_experts).
bool divides_on_nodes(const ModelConfig& model, const Mesh& mesh, int gpus_per_node) {
  const std::int64_t nodes = num_nodes(mesh, gpus_per_node);
  return nodes > 1 && model.n_group % nodes == 0 && model.num_experts % model.n_group == 0 &&
         mesh.num_redundant_experts % nodes == 0 && mesh.ep % nodes == 0 &&
         has_nodes_of_neighbours(mesh, gpus_per_node);
}

std::string trace_text(const ExpertLoadSpec& spec, const std::filesystem::path& directory,
                       const std::filesystem::path& root, std::filesystem::path& file) {
  file = resolve_path(spec.trace, directory, root);
  if (file.empty()) {
    throw std::invalid_argument("found no routing trace '" + shown(spec.trace) + "' in " +
                                directory.string() + " or " + root.string());
  }
  return read_text_file(file, kMostTraceBytes);
}

// Of one interval after the other where the trace says how the load drifts.
std::vector<ExpertLoad> trace_loads(const ExpertLoadSpec& spec, const ModelConfig& model,
                                    const std::filesystem::path& directory,
                                    const std::filesystem::path& root) {
  std::filesystem::path file;
  const std::string text = trace_text(spec, directory, root, file);
  const std::int64_t topk = model.num_experts_per_tok;
  try {
    if (!spec.drift || spec.drift->share > 0) {
      return {load_of_counts(trace_counts(text, model.num_experts), topk)};
    }
    std::vector<ExpertLoad> loads;
    for (const std::vector<std::int64_t>& counts : interval_counts(text, model.num_experts)) {
      loads.push_back(load_of_counts(counts, topk));
    }
    return loads;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(file.string() + ": " + error.what());
  }
}

// Of any but a trace.
ExpertLoad drawn_load(const ExpertLoadSpec& spec, std::int64_t experts) {
  if (spec.zipf >= 0) return zipf_load(experts, spec.zipf, spec.seed);
  if (spec.skew == ExpertSkew::kBalanced || spec.skew == ExpertSkew::kUniform) return {};
  return power_law_load(experts, spec.skew == ExpertSkew::kPowerLaw12 ? kMoreEven : kLessEven,
                        spec.seed);
}

}  // namespace

MoeSpec read_moe(const YamlNode& node, const MoeSpec& defaults) {
  Reader reader(node, "moe", key_names("moe"));
  MoeSpec spec = defaults;
  if (reader.has("design")) {
    const MoeDesign design = reader.convert("design", parse_moe_design);
    if (design != defaults.design) {
      spec = {.design = design};
    }
  }
  if (reader.has("streams")) {
    spec.streams = static_cast<int>(reader.integer("streams", 1, 2));
  }
  if (reader.has("chunks")) {
    spec.chunks = static_cast<int>(reader.integer("chunks", 1, kMostMoeChunks));
  }
  if (reader.has("fuse_scatter_add")) {
    spec.fuse_scatter_add = reader.boolean("fuse_scatter_add");
  }
  if (reader.has("fuse_gather")) spec.fuse_gather = reader.boolean("fuse_gather");
  if (reader.has("shared_inside")) spec.shared_inside = reader.boolean("shared_inside");
  if (reader.has("capacity_factor")) spec.capacity_percent = read_capacity_percent(reader);
  if (reader.has("experts")) {
    spec.experts = static_cast<ExpertOrder>(reader.choice("experts", kExpertOrderNames));
  }
  if (reader.has("eplb")) spec.eplb = read_eplb(reader);
  if (reader.has("backend")) {
    const std::size_t backend = reader.choice("backend", kMoeBackendNames);
    spec.backend = backend == 0 ? "" : kMoeBackendNames[backend];
    if (!spec.backend.empty() && spec.design != MoeDesign::kFused) {
      reader.fail("backend", "found " + spec.backend + " beside design " +
                                 std::string(to_text(spec.design)) +
                                 ", whose kernels are our own; expected design fused, an engine's");
    }
  }
  return spec;
}

std::string to_yaml(const MoeSpec& spec) {
  return "{design: " + std::string(to_text(spec.design)) +
         ", streams: " + std::to_string(spec.streams) +
         (spec.chunks > 1 ? ", chunks: " + std::to_string(spec.chunks) : std::string()) +
         ", fuse_scatter_add: " + (spec.fuse_scatter_add ? "true" : "false") +
         (spec.fuse_gather ? ", fuse_gather: true" : "") +
         (spec.shared_inside ? ", shared_inside: true" : "") + capacity_yaml(spec) +
         ", experts: " + std::string(kExpertOrderNames[static_cast<std::size_t>(spec.experts)]) +
         eplb_yaml(spec.eplb) + (spec.backend.empty() ? "" : ", backend: " + spec.backend) + "}";
}

std::string layer_moe_yaml(const MoeSpec& spec) {
  return "{design: " + std::string(to_text(spec.design)) +
         ", streams: " + std::to_string(spec.streams) + ", chunks: " + std::to_string(spec.chunks) +
         ", fuse_scatter_add: " + yaml_bool(spec.fuse_scatter_add) +
         ", fuse_gather: " + yaml_bool(spec.fuse_gather) +
         ", shared_inside: " + yaml_bool(spec.shared_inside) + capacity_yaml(spec) + "}";
}

void set_moe(const MoeSpec& spec, LoweringOptions& options) {
  options.moe_design = spec.design;
  options.moe_streams = spec.streams;
  options.fuse_scatter_add = spec.fuse_scatter_add;
  options.fuse_gather = spec.fuse_gather;
  options.shared_inside = spec.shared_inside;
  options.capacity_percent = spec.capacity_percent;
}

bool has_host_syncs(const MoeSpec& spec, const Mesh& mesh) {
  const bool dispatches_by_counts =
      spec.design == MoeDesign::kShuffling && mesh.dp > 1 &&
      (mesh.expert_comm == ExpertComm::kEager || mesh.expert_comm == ExpertComm::kDedup ||
       mesh.expert_comm == ExpertComm::kCopies);
  return spec.design == MoeDesign::kSlicing || spec.design == MoeDesign::kConcatenation ||
         dispatches_by_counts;
}

ExpertPlacement first_placement(const ExpertLoad& load, const MoeSpec& spec,
                                const ModelConfig& model, const Mesh& mesh,
                                const ExpertSite& site) {
  if (spec.experts == ExpertOrder::kInOrder) {
    return placement_in_order(model.num_experts, mesh.num_redundant_experts, mesh.ep);
  }
  return rebalanced(choice_probabilities(load, model.num_experts, model.num_experts_per_tok), spec,
                    model, mesh, site);
}

ExpertPlacement rebalanced(std::span<const double> choices, const MoeSpec& spec,
                           const ModelConfig& model, const Mesh& mesh, const ExpertSite& site) {
  const int gpus = site.gpus_per_node;
  const bool is_by_links = spec.experts == ExpertOrder::kByLinks;
  const bool may_go_by_nodes =
      spec.experts == ExpertOrder::kInOrder || (is_by_links && model.topk_group < model.n_group);
  const bool goes_by_nodes = spec.experts == ExpertOrder::kBalancedOnNodes ||
                             (may_go_by_nodes && divides_on_nodes(model, mesh, gpus));
  ExpertPlacement placed = goes_by_nodes
                               ? on_nodes(choices, model, mesh, gpus)
                               : balance_experts(choices, mesh.num_redundant_experts, mesh.ep);
  if (!is_by_links) return placed;
  return place_by_links(std::move(placed), choices, site.links, site.work,
                        goes_by_nodes ? num_nodes(mesh, gpus) : 1);
}

void place_experts(const ExpertLoad& load, const MoeSpec& spec, const ModelConfig& model,
                   const ExpertSite& site, Mesh& mesh) {
  mesh.expert_load = load;
  mesh.expert_of_slot.clear();
  if (mesh.num_redundant_experts == 0 && (mesh.ep == 1 || spec.experts == ExpertOrder::kInOrder)) {
    return;
  }
  ExpertPlacement placement = first_placement(load, spec, model, mesh, site);
  mesh.expert_load = placed_load(placement, load, model.num_experts, model.num_experts_per_tok);
  mesh.expert_of_slot = std::move(placement.expert_of_slot);
}

std::string_view to_text(ExpertSkew skew) {
  return kExpertLoadNames[static_cast<std::size_t>(skew)];
}

ExpertLoadSpec read_expert_load(const Reader& parent, std::string_view key) {
  ExpertLoadSpec spec;
  const YamlNode& node = parent.at(key);
  if (node.kind != YamlNode::Kind::kMap) {
    spec.skew = static_cast<ExpertSkew>(parent.choice(key, kExpertLoadNames));
    return spec;
  }
  const Reader reader(node, parent.path_of(key), key_names("expert_load"));
  if (reader.has("zipf") == reader.has("trace")) {
    parent.fail(key,
                "expected one of zipf: EXPONENT and trace: FILE, or the name of a distribution");
  }
  if (reader.has("zipf")) {
    spec.zipf = reader.number("zipf", 0, 16);
  } else {
    spec.trace = reader.text("trace");
  }
  if (reader.has("seed")) {
    if (reader.has("trace")) {
      reader.fail("seed", "belongs to zipf: a trace says which experts are chosen most");
    }
    spec.seed = static_cast<std::uint64_t>(reader.integer("seed", 0));
  }
  if (!reader.has("drift")) return spec;
  spec.drift = read_drift(reader);
  if (spec.zipf == 0) {
    reader.fail("drift",
                "found zipf 0, with which all experts are alike and none could change; "
                "expected a zipf above 0, such as 1.0");
  }
  if (spec.trace.empty() && spec.drift->share == 0) {
    reader.fail("drift",
                "found no share beside zipf; expected share: NUMBER, the part of the "
                "experts that exchange their popularity, or a trace with intervals");
  }
  return spec;
}

std::string to_yaml(const ExpertLoadSpec& spec) {
  if (!spec.trace.empty()) {
    return "{trace: " + quoted_yaml(spec.trace) + drift_yaml(spec.drift) + "}";
  }
  if (spec.zipf >= 0) {
    return "{zipf: " + format_number(spec.zipf) + ", seed: " + std::to_string(spec.seed) +
           drift_yaml(spec.drift) + "}";
  }
  return std::string(to_text(spec.skew));
}

ExpertDrift expert_drift(const ExpertLoadSpec& spec, const ModelConfig& model,
                         const std::filesystem::path& directory,
                         const std::filesystem::path& root) {
  if (model.num_experts == 0) {
    if (spec.is_skew()) return {.loads = {{}}};
    throw std::invalid_argument("model \"" + model.name +
                                "\" has no routed experts whose load could be given");
  }
  ExpertDrift drift;
  if (spec.trace.empty()) {
    drift.loads = {drawn_load(spec, model.num_experts)};
  } else {
    drift.loads = trace_loads(spec, model, directory, root);
  }
  if (spec.drift) {
    drift.interval = spec.drift->interval;
    drift.share = spec.drift->share;
  }
  return drift;
}

}  // namespace orrery

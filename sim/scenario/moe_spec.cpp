#include "sim/scenario/moe_spec.h"

#include <array>
#include <cstdint>
#include <stdexcept>

#include "sim/model/expert_load_sources.h"
#include "sim/parallel/expert_placement.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/workload.h"
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
  if (reader.has("fuse_scatter_add")) {
    spec.fuse_scatter_add = reader.boolean("fuse_scatter_add");
  }
  if (reader.has("experts")) {
    spec.experts = static_cast<ExpertOrder>(reader.choice("experts", kExpertOrderNames));
  }
  return spec;
}

std::string to_yaml(const MoeSpec& spec) {
  return "{design: " + std::string(to_text(spec.design)) +
         ", streams: " + std::to_string(spec.streams) +
         ", fuse_scatter_add: " + (spec.fuse_scatter_add ? "true" : "false") +
         ", experts: " + std::string(kExpertOrderNames[static_cast<std::size_t>(spec.experts)]) +
         "}";
}

void set_moe(const MoeSpec& spec, LoweringOptions& options) {
  options.moe_design = spec.design;
  options.moe_streams = spec.streams;
  options.fuse_scatter_add = spec.fuse_scatter_add;
}

bool has_host_syncs(const MoeSpec& spec, const Mesh& mesh) {
  const bool dispatches_by_counts =
      spec.design == MoeDesign::kShuffling && mesh.dp > 1 &&
      (mesh.expert_comm == ExpertComm::kEager || mesh.expert_comm == ExpertComm::kDedup);
  return spec.design == MoeDesign::kSlicing || spec.design == MoeDesign::kConcatenation ||
         dispatches_by_counts;
}

ExpertLoad slot_load(const ExpertLoad& load, const MoeSpec& spec, const ModelConfig& model,
                     const Mesh& mesh, int gpus_per_node) {
  const std::int64_t experts = model.num_experts;
  const std::int64_t redundant = mesh.num_redundant_experts;
  const std::int64_t topk = model.num_experts_per_tok;
  if (redundant == 0 && (mesh.ep == 1 || spec.experts == ExpertOrder::kInOrder)) {
    return load;
  }
  const std::vector<double> choices = choice_probabilities(load, experts, topk);
  ExpertPlacement placement;
  if (spec.experts == ExpertOrder::kInOrder) {
    placement = placement_in_order(experts, redundant, mesh.ep);
  } else if (spec.experts == ExpertOrder::kBalanced) {
    placement = balance_experts(choices, redundant, mesh.ep);
  } else {
    const std::int64_t ranks = static_cast<std::int64_t>(mesh.dp) * mesh.tp;
    const std::int64_t nodes = (ranks + gpus_per_node - 1) / gpus_per_node;
    const bool has_blocks_apart = mesh.tp > 1 && mesh.ep != mesh.dp;
    if (nodes > 1 && (ranks % gpus_per_node != 0 || has_blocks_apart)) {
      throw std::invalid_argument(
          "experts balanced_on_nodes with dp " + std::to_string(mesh.dp) + ", tp " +
          std::to_string(mesh.tp) + ", ep " + std::to_string(mesh.ep) + " on nodes of " +
          std::to_string(gpus_per_node) +
          " GPUs, expected whole nodes with neighbouring experts on each (tp 1, or ep = dp)");
    }
    placement = balance_experts_on_nodes(choices, redundant, mesh.ep, nodes, model.n_group);
  }
  return placed_load(placement, load, experts, topk);
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
  return spec;
}

std::string to_yaml(const ExpertLoadSpec& spec) {
  if (!spec.trace.empty()) {
    return "{trace: " + quoted_yaml(spec.trace) + "}";
  }
  if (spec.zipf >= 0) {
    return "{zipf: " + format_number(spec.zipf) + ", seed: " + std::to_string(spec.seed) + "}";
  }
  return std::string(to_text(spec.skew));
}

ExpertLoad expert_load(const ExpertLoadSpec& spec, const ModelConfig& model,
                       const std::filesystem::path& directory, const std::filesystem::path& root) {
  const std::int64_t experts = model.num_experts;
  if (experts == 0) {
    if (spec.is_skew()) {
      return {};
    }
    throw std::invalid_argument("model \"" + model.name +
                                "\" has no routed experts whose load could be given");
  }
  if (!spec.trace.empty()) {
    const std::filesystem::path file = resolve_path(spec.trace, directory, root);
    if (file.empty()) {
      throw std::invalid_argument("found no routing trace '" + shown(spec.trace) + "' in " +
                                  directory.string() + " or " + root.string());
    }
    try {
      return load_of_counts(trace_counts(read_text_file(file, kMostTraceBytes), experts),
                            model.num_experts_per_tok);
    } catch (const TextFileError&) {
      throw;
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(file.string() + ": " + error.what());
    }
  }
  if (spec.zipf >= 0) {
    return zipf_load(experts, spec.zipf, spec.seed);
  }
  if (spec.skew == ExpertSkew::kBalanced || spec.skew == ExpertSkew::kUniform) {
    return {};
  }
  return power_law_load(experts, spec.skew == ExpertSkew::kPowerLaw12 ? kMoreEven : kLessEven,
                        spec.seed);
}

}  // namespace orrery

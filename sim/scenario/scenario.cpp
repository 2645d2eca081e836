#include "sim/scenario/scenario.h"

#include <utility>

#include "sim/scenario/autoscaling.h"
#include "sim/scenario/check_keys.h"
#include "sim/scenario/chosen_step.h"
#include "sim/scenario/engine_part.h"
#include "sim/scenario/experts.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/kv_cache.h"
#include "sim/scenario/model_part.h"
#include "sim/scenario/set_paths.h"
#include "sim/scenario/slo_spec.h"
#include "sim/scenario/validation_layers.h"
#include "sim/serve/router.h"

namespace orrery {
namespace {

// `scenario` has the decode side's setting.
Disaggregation read_sides(const Reader& root, const std::filesystem::path& directory,
                          const Scenario& scenario) {
  std::optional<MachineSetting> prefill;
  if (has_own_setting(root.node())) {
    prefill = read_machine_setting(root, kPrefillSide, directory, scenario.paths.root);
  }
  const MachineSpec& decode = scenario.machine_spec;
  const SideMachines machines{.prefill = prefill ? &prefill->machine_spec : &decode,
                              .decode = &decode,
                              .are_two = has_two_machines(root.node())};
  Disaggregation found = read_disaggregation(root.at("disaggregation"), scenario.model_config,
                                             scenario.precision.kv_cache, machines);
  found.prefill_setting = std::move(prefill);
  return found;
}

// `placement`, or `disaggregation` in its place.
void read_place(const Reader& root, const std::filesystem::path& directory, Scenario& scenario) {
  Placement placement;
  if (root.has("disaggregation")) {
    if (root.has("placement")) {
      root.fail("placement", "found placement beside disaggregation; expected one of them");
    }
    scenario.disaggregation = read_sides(root, directory, scenario);
    placement = scenario.disaggregation->decode.placement;
  } else if (root.has("placement")) {
    const YamlNode& node = root.at("placement");
    const YamlNode* const moe = root.node().find("moe");
    const YamlNode* const design = moe == nullptr ? nullptr : moe->find("design");
    if (design != nullptr && design->scalar == to_text(MoeDesign::kPersistent)) {
      check_placed_as_one_kernel(node, scenario.model_config);
    }
    placement = read_placement(node, scenario.model_config, scenario.machine_spec);
    if (node.find(kFfnSide) != nullptr) {
      scenario.ffn =
          read_ffn_side(node, placement, scenario.machine_spec,
                        read_machine_setting(root, kFfnSide, directory, scenario.paths.root));
    }
  }
  scenario.replicas = placement.replicas;
  scenario.mesh = placement.mesh;
}

void read_scaling(const Reader& root, Scenario& scenario) {
  if (!root.has("autoscaling")) return;
  const YamlNode& node = root.at("autoscaling");
  if (scenario.disaggregation) {
    root.fail("autoscaling",
              "found autoscaling beside disaggregation, whose sides are of a fixed size; expected "
              "placement in its place");
  }
  if (scenario.ffn) {
    root.fail(
        "autoscaling",
        "found autoscaling beside placement.ffn, whose machine has a fixed size; expected one "
        "of them");
  }
  scenario.autoscaling = read_autoscaling(node);
  AutoscalingConfig& scaling = *scenario.autoscaling;
  const YamlNode* placement = root.node().find("placement");
  if (placement == nullptr || placement->find("replicas") == nullptr) {
    scenario.replicas = scaling.min_replicas;
  }
  if (scenario.replicas < scaling.min_replicas || scenario.replicas > scaling.max_replicas) {
    fail_at(node.where, "autoscaling: found placement.replicas " +
                            std::to_string(scenario.replicas) +
                            ", those at the start; expected from min_replicas, " +
                            std::to_string(scaling.min_replicas) + ", to max_replicas, " +
                            std::to_string(scaling.max_replicas));
  }
  const std::int64_t gpus = std::int64_t{scaling.max_replicas} * num_ranks(scenario.mesh);
  if (gpus > scenario.machine_spec.num_gpus) {
    fail_at(node.where, "autoscaling: max_replicas needs " + std::to_string(gpus) + " GPUs (" +
                            std::to_string(scaling.max_replicas) + " replicas of " +
                            std::to_string(num_ranks(scenario.mesh)) + "); machine " +
                            scenario.machine_spec.name + " has " +
                            std::to_string(scenario.machine_spec.num_gpus));
  }
  for (const std::string_view key : {"offline", "static_batch"}) {
    if (root.at("workload").find(key) != nullptr) {
      root.fail("autoscaling", "found autoscaling beside " + std::string(key) +
                                   ", whose requests all wait from the start; expected a trace, "
                                   "poisson, gamma, closed_loop or sessions");
    }
  }
  if (root.has("kv_cache")) {
    root.fail("autoscaling",
              "found autoscaling beside tiers of KV blocks (kv_cache), which leave with their "
              "replicas; expected one of them");
  }
}

// Routers that need what the workload or the engine does not have.
void check_router(const Reader& root, const Scenario& scenario) {
  const RouterPolicy& router = router_policy(scenario.router);
  const auto* trace = std::get_if<TraceWorkload>(&scenario.workload.source);
  const bool may_have_sessions = std::holds_alternative<SessionConfig>(scenario.workload.source) ||
                                 (trace != nullptr && trace->format == TraceFormat::kForeign);
  if (router.needs_sessions && !may_have_sessions) {
    root.fail("router", "found " + std::string(router.name) +
                            ", which keeps the turns of a session together, beside requests of "
                            "none; expected workload.sessions, a trace with sessions, or another "
                            "router such as least_loaded");
  }
}

// What a disaggregated service cannot serve.
void check_disaggregated(const Reader& root, const Scenario& scenario) {
  if (!scenario.disaggregation) {
    return;
  }
  for (const SidePlacement* side :
       {&scenario.disaggregation->prefill, &scenario.disaggregation->decode}) {
    const EngineConfig engine = engine_of(*side, scenario.engine);
    if (engine.max_num_batched_tokens < engine.max_num_seqs) {
      root.fail("disaggregation",
                std::string(side == &scenario.disaggregation->prefill ? "prefill" : "decode") +
                    ": max_num_batched_tokens is " + std::to_string(engine.max_num_batched_tokens) +
                    "; expected at least max_num_seqs, " + std::to_string(engine.max_num_seqs));
    }
  }
  for (const std::string_view key : {"offline", "static_batch"}) {
    if (root.at("workload").find(key) != nullptr) {
      root.fail("workload", "found " + std::string(key) +
                                " beside disaggregation, which serves requests as they come; "
                                "expected a trace, poisson, gamma, closed_loop or sessions");
    }
  }
}

// A machine of the scenario's that neither side has its GPUs from.
void note_unused_machine(const Reader& root, Scenario& scenario) {
  if (!root.has("machine") || !side_has(root.node(), kPrefillSide) ||
      !side_has(root.node(), kDecodeSide)) {
    return;
  }
  const YamlNode& node = root.at("machine");
  const YamlNode* name = node.kind == YamlNode::Kind::kMap ? node.find("name") : &node;
  Disaggregation& placed = *scenario.disaggregation;
  if (name != nullptr && name->scalar != scenario.machine &&
      name->scalar != placed.prefill_setting->machine) {
    placed.unused_machine = name->scalar;
  }
}

}  // namespace

const MachineSetting& ffn_setting(const Scenario& scenario) {
  return scenario.ffn ? scenario.ffn->setting : scenario;
}

const MachineSetting& prefill_setting(const Scenario& scenario) {
  const auto& own = scenario.disaggregation->prefill_setting;
  return own ? *own : scenario;
}

Scenario load_scenario(const std::filesystem::path& file, const ProjectPaths& paths,
                       const std::vector<std::string>& overrides) {
  YamlNode root = read_yaml(file);
  for (const std::string& assignment : overrides) {
    set_value(root, assignment);
  }
  return read_scenario(root, file, paths);
}

Scenario read_scenario(const YamlNode& given, const std::filesystem::path& file,
                       const ProjectPaths& paths, SharedRequests requests) {
  const std::filesystem::path directory = std::filesystem::absolute(file).parent_path();
  const auto with_paths = with_set_paths(given, directory, std::filesystem::current_path());
  const YamlNode& root_node = with_paths ? *with_paths : given;
  check_keys(root_node, kScenarioSection);
  const Reader root(root_node, "", key_names(kScenarioSection));
  if (side_has(root_node, kPrefillSide) && side_has(root_node, kDecodeSide)) {
    root.require({"model", "workload"});
  } else {
    root.require({"model", "machine", "workload"});
  }
  Scenario scenario;
  scenario.paths = paths;
  scenario.name = file.stem().string();
  for (const YamlNode::Entry& entry : root_node.entries) {
    scenario.where[entry.key] = entry.where;
  }
  scenario.where[""] = {root_node.where.file, 0, 0};
  if (root.has("question")) {
    scenario.question = root.text("question");
  }
  read_model_part(root.at("model"), directory, scenario);
  static_cast<MachineSetting&>(scenario) =
      read_machine_setting(root, kDecodeSide, directory, paths.root);
  read_place(root, directory, scenario);
  read_engines(root_node.find("engine"), root_node, directory, scenario);
  note_unused_machine(root, scenario);
  read_experts(root, directory, scenario);
  if (root.has("kv_cache")) {
    scenario.kv_tiers = read_kv_cache(root.at("kv_cache"));
    if (!scenario.kv_tiers.tiers.empty() && !scenario.engine.enable_prefix_caching) {
      root.fail("kv_cache",
                "found tiers beside engine.enable_prefix_caching: false, without which "
                "no block is found again; expected true");
    }
  }
  if (root.has("router")) {
    scenario.router = router_policies()[root.choice("router", router_names())].kind;
  }
  scenario.workload =
      read_workload(root.at("workload"), directory, paths.root, std::move(requests), paths.traces);
  check_disaggregated(root, scenario);
  read_scaling(root, scenario);
  check_router(root, scenario);
  if (root.has("slo")) {
    read_slo(root.at("slo"), scenario.slo);
  }
  if (root.has("step_level")) {
    scenario.step_level = root.convert("step_level", parse_step_level);
  }
  if (root.has("chosen_step")) {
    scenario.chosen_step = read_chosen_step(root);
  }
  if (root.has("validate")) {
    scenario.validation = read_validation(root.at("validate"));
    read_layers(root, scenario);
  }
  if (root.has("seed")) {
    scenario.seed = static_cast<std::uint64_t>(root.integer("seed", 0));
  }
  return scenario;
}

}  // namespace orrery

// A scenario as YAML: to_yaml of scenario.h.

#include <string>

#include "sim/scenario/autoscaling.h"
#include "sim/scenario/chosen_step.h"
#include "sim/scenario/config_keys.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/kv_cache.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/scenario/scenario.h"
#include "sim/scenario/slo_spec.h"
#include "sim/serve/router.h"

namespace orrery {
namespace {

std::string graphs_yaml(const EngineProfile& profile) {
  std::string sizes;
  for (const std::int64_t size : profile.graph_batch_sizes) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  const std::string mode =
      profile.launch_mode == LaunchMode::kMegakernel
          ? "  launch_mode: " + std::string(to_text(profile.launch_mode)) + "\n"
          : "";
  return mode + "  graph_batch_sizes: [" + sizes + "]\n  cuda_graphs: " +
         std::string(kCudaGraphsNames[static_cast<std::size_t>(profile.cuda_graphs)]) +
         "\n  max_piece_tokens: " + std::to_string(profile.max_piece_tokens) + "\n";
}

}  // namespace

std::string to_yaml(const Scenario& scenario, const std::string& requests_file) {
  const Precision& precision = scenario.precision;
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  std::string text;
  text += "question: " + quoted_yaml(scenario.question) + "\n";
  text += "model:\n  config: " + quoted_yaml(scenario.model) +
          (scenario.model_as.empty() ? "" : "\n  as: " + quoted_yaml(scenario.model_as)) +
          (scenario.num_layers ? "\n  layers: " + number(*scenario.num_layers) : std::string()) +
          "\n  weights: " + std::string(to_text(precision.weights)) +
          (precision.expert_weights
               ? "\n  expert_weights: " + std::string(to_text(*precision.expert_weights))
               : std::string()) +
          "\n  activations: " + std::string(to_text(precision.activations)) +
          "\n  kv_cache: " + std::string(to_text(precision.kv_cache)) +
          "\n  lm_head: " + std::string(to_text(precision.lm_head)) +
          "\n  expert_load: " + to_yaml(scenario.expert_load) + "\nmoe: " + to_yaml(scenario.moe) +
          "\n";
  text += machine_yaml(scenario, "") + "\n" + provider_yaml(scenario, "") + "\n";
  text +=
      scenario.disaggregation
          ? to_yaml(*scenario.disaggregation, scenario)
          : to_yaml(Placement{.replicas = scenario.replicas, .mesh = scenario.mesh}, scenario.ffn);
  if (scenario.autoscaling) text += to_yaml(*scenario.autoscaling);
  text += "engine:\n  profile: " + quoted_yaml(scenario.profile) +
          config_yaml(engine_fields(), scenario.engine, "  ") + "\n" +
          graphs_yaml(scenario.engine_profile);
  if (scenario.speculative) text += to_yaml(*scenario.speculative);
  text += to_yaml(scenario.kv_tiers);
  text += "router: " + std::string(to_text(scenario.router)) + "\n";
  text += "workload: " + to_yaml(scenario.workload, scenario.paths.root, requests_file) + "\n";
  // The scenario's would be that of sides whose machines say none, too.
  const bool is_cost_of_sides =
      (scenario.disaggregation && scenario.disaggregation->prefill_setting) ||
      (scenario.ffn && scenario.ffn->setting.machine_spec.costs.usd_per_gpu_hour == 0);
  text += to_yaml(scenario.slo);
  if (!is_cost_of_sides) text += to_yaml(scenario.machine_spec.costs);
  text += "step_level: " + std::string(to_text(scenario.step_level)) + "\n";
  text += "chosen_step: " + chosen_step_yaml(scenario.chosen_step) + "\n";
  text += "validate: " + to_yaml(scenario.validation) + "\n";
  text += "seed: " + std::to_string(scenario.seed) + "\n";
  return text;
}

}  // namespace orrery

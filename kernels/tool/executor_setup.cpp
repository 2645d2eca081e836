#include "kernels/tool/executor_setup.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/serve/rank_grid.h"
#include "sim/model/result_numbers.h"

namespace orrery::tool {
namespace {

RoutingScore score_of(const ModelConfig& model) {
  return model.scoring_func == ScoringFunc::kSigmoid ? RoutingScore::kSigmoid
                                                     : RoutingScore::kSoftmax;
}

// Of FFNs on GPUs of their own: partial results of several instances would have to be added up on
// arrival, and tensor-parallel ranks of attention to share the rows that come.
void check_sides(const Mesh& mesh) {
  if (mesh.ffn_instances == 0) return;
  if (mesh.ffn_instances > 1 || mesh.tp > 1) {
    throw std::invalid_argument("FFNs on GPUs of their own are not executed with ffn_instances " +
                                std::to_string(mesh.ffn_instances) + ", tp " +
                                std::to_string(mesh.tp) + "; expected ffn_instances 1, tp 1");
  }
}

}  // namespace

Deployment read_deployment(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!stream.good()) {
    throw std::invalid_argument(file.string() + ": cannot be read; expected a deployment");
  }
  try {
    return parse_deployment(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(file.string() + ": " + error.what());
  }
}

RankGrid rank_grid(const Mesh& mesh) {
  check_sides(mesh);
  return grid_of(mesh);
}

Routing routing_of(const ModelConfig& model) {
  return {.score = score_of(model),
          .normalises = model.norm_topk_prob,
          .scale = model.routed_scaling_factor,
          .groups = model.n_group,
          .topk_groups = model.topk_group};
}

ExpertRouter router_of(const ModelConfig& model) {
  return {.score = score_of(model),
          .experts = model.num_experts,
          .topk = model.num_experts_per_tok,
          .groups = model.n_group,
          .topk_groups = model.topk_group,
          .group_score = model.has_correction_bias ? GroupScore::kBestTwo : GroupScore::kBest};
}

ModelNumbers model_numbers(const Deployment& deployment, std::int64_t max_positions) {
  const ModelConfig model = model_config(deployment.name, deployment.config);
  const ResultNumbers stated = result_numbers(deployment.name, deployment.config);
  ModelNumbers numbers{.norm_epsilon = stated.rms_norm_eps,
                       .rope_theta = stated.rope_theta,
                       .head_dim = model.rotary_dim(),
                       .max_positions = max_positions,
                       .routing = routing_of(model)};
  const std::vector<std::int64_t>& slots = deployment.mesh.expert_of_slot;
  numbers.routing.expert_of_slot.assign(slots.begin(), slots.end());
  numbers.routing.bias = router_bias(deployment.lowering.expert_load, router_of(model));
  return numbers;
}

ExecutorSetup layers_setup(const Deployment& deployment, std::span<const StepCase> layers,
                           std::vector<int> devices) {
  const auto largest =
      std::ranges::max_element(layers, {}, [](const StepCase& layer) { return num_tokens(layer); });
  return {.plan = largest->plan,
          .grid = rank_grid(deployment.mesh),
          .numbers = {.routing = model_numbers(deployment, /*max_positions=*/1).routing},
          .devices = std::move(devices),
          .seed = deployment.seed,
          .max_tokens = num_tokens(*largest),
          .max_sequences = 1,
          .max_model_len = 1};
}

}  // namespace orrery::tool

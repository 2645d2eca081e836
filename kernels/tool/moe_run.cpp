#include "kernels/tool/moe_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/execute/layer_inputs.h"
#include "kernels/tool/executor_setup.h"

namespace orrery::tool {

ExecutorSetup layer_setup(const MoeCase& one, Plan plan) {
  const RankGrid grid = rank_grid(one.mesh);
  const ModelConfig model = moe_model(one.model);
  Routing routing = routing_of(model);
  if (one.load == ImposedLoad::kBias) {
    routing.bias = router_bias(moe_lowering(one).expert_load, router_of(model));
  }
  std::vector<int> devices(static_cast<std::size_t>(grid.size()));
  std::iota(devices.begin(), devices.end(), 0);
  return {.plan = std::move(plan),
          .grid = grid,
          .numbers = {.routing = std::move(routing)},
          .devices = std::move(devices),
          .max_tokens = one.tokens,
          .max_sequences = 1,
          .max_model_len = 1};
}

std::map<std::string, std::vector<float>> layer_inputs(const MoeCase& one, const Plan& plan,
                                                       int rank) {
  const ModelConfig model = moe_model(one.model);
  const RankGrid grid = rank_grid(one.mesh);
  std::map<std::string, std::vector<float>> inputs;
  for (const Tensor& tensor : plan.tensors()) {
    if (tensor.role != TensorRole::kInput || !plan.contains(tensor.ranks, rank)) continue;
    const std::vector<float> values =
        tensor.dtype == DType::kFp32 ? imposed_scores(one, model.num_experts)
                                     : draw_layer_input(one.tokens, model.hidden_size, one.seed);
    inputs[tensor.name] = rows_of_rank(tensor, grid, rank, one.tokens, values);
  }
  return inputs;
}

std::unique_ptr<PreparedStep> prepared_layer(Executor& executor, const MoeCase& one,
                                             const Plan& plan) {
  auto step = executor.prepare(plan, {}, one.mode);
  for (const int rank : executor.ranks()) {
    for (const auto& [name, values] : layer_inputs(one, plan, rank)) {
      executor.give(*step, rank, name, values);
    }
  }
  return step;
}

double layer_difference(const std::vector<float>& found, const std::vector<float>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double apart = std::abs(static_cast<double>(found[i]) - expected[i]);
    if (!std::isfinite(apart)) return INFINITY;
    most = std::max(most, apart);
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return most / largest;
}

}  // namespace orrery::tool

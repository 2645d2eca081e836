#include "kernels/tool/moe_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/execute/weights.h"
#include "kernels/experts/index_shuffling/reference.h"
#include "kernels/tool/executor_setup.h"

namespace orrery::tool {
namespace {

// Rows [first, first + count) of values [.., columns]; zeros beyond them.
std::vector<float> rows_of(const std::vector<float>& values, std::int64_t columns,
                           std::int64_t first, std::int64_t count) {
  std::vector<float> rows(static_cast<std::size_t>(count * columns));
  const std::int64_t begin = std::min<std::int64_t>(first * columns, std::ssize(values));
  const std::int64_t end = std::min<std::int64_t>(begin + count * columns, std::ssize(values));
  std::copy(values.begin() + begin, values.begin() + end, rows.begin());
  return rows;
}

// What the first choice of experts adds to scores; empty where that is nothing.
std::vector<double> correction_bias(const Plan& whole) {
  const WeightShards shards = weight_shards(whole, 0);
  for (const Op& op : whole.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || kernel->kernel != "index_shuffling") continue;
    for (const TensorId id : op.reads) {
      const std::int32_t shard = shards.tensor_shard[static_cast<std::size_t>(id)];
      if (shard < 0) continue;
      const StoredWeight stored = stored_weight(shards.shards[static_cast<std::size_t>(shard)], 0,
                                                DType::kFp32, ExecutorSetup{}.seed);
      return {stored.values.begin(), stored.values.end()};
    }
  }
  return {};
}

}  // namespace

ExecutorSetup layer_setup(const MoeCase& one, Plan plan) {
  const RankGrid grid = rank_grid(one.mesh);
  const ModelConfig model = moe_model(one.model);
  Routing routing = routing_of(model);
  if (imposes_bias(one)) {
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
    const bool is_scores = tensor.dtype == DType::kFp32;
    const std::vector<float> values =
        is_scores ? imposed_scores(one, model.num_experts) : layer_input(one, model.hidden_size);
    const std::int64_t columns = tensor.axes.back().size;
    const std::int64_t count = num_elements(tensor) / columns;
    // Data-parallel ranks have tokens of their own.
    const std::int64_t first = count < one.tokens ? grid.dp_rank(rank) * count : 0;
    inputs[tensor.name] = rows_of(values, columns, first, count);
  }
  return inputs;
}

std::vector<std::int32_t> imposed_rows(const MoeCase& one, const Plan& whole) {
  if (!imposes_scores(one)) return {};
  return chosen_rows(one, whole, imposed_scores(one, moe_model(one.model).num_experts));
}

std::vector<std::int32_t> chosen_rows(const MoeCase& one, const Plan& whole,
                                      const std::vector<float>& scores) {
  const ModelConfig model = moe_model(one.model);
  const std::vector<double> bias = correction_bias(whole);
  return reference::index_shuffling(
             std::vector<double>(scores.begin(), scores.end()), bias,
             {.tokens = one.tokens,
              .experts_total = model.num_experts,
              .topk = model.num_experts_per_tok,
              .groups = model.n_group,
              .topk_groups = model.topk_group,
              .group_score = bias.empty() ? GroupScore::kBest : GroupScore::kBestTwo,
              .experts = model.num_experts})
      .counts;
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

#include "sim/parallel/parallel.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

Plan data_pass_of_kernels(const Plan& plan, const Mesh& mesh) { return data_pass(plan, mesh, 0); }
constexpr auto kDataPass = data_pass_of_kernels;

constexpr auto kPasses = std::to_array<ParallelPass>({
    {.name = "data",
     .summary = "each dp rank, and each micro-batch, has its share of the rows",
     .applies = data_applies,
     .apply = kDataPass,
     .knows_cp = true},
    {.name = "tensor",
     .summary = "heads, FFN columns and vocabulary over tp; all_reduce of partial results",
     .applies = tensor_applies,
     .apply = tensor_pass,
     .knows_cp = true},
    {.name = "context",
     .summary = "the KV cache and queries of prompts over cp; partial attention is merged",
     .applies = context_applies,
     .apply = context_pass,
     .knows_cp = true},
    {.name = "balanced_rows",
     .summary = "even rows over dp but for attention; all_gather before it, all_to_all behind it",
     .applies = balanced_rows_applies,
     .apply = balanced_rows_pass},
    {.name = "expert",
     .summary = "routed experts over ep, their columns over the rest; tokens dispatched over dp",
     .applies = expert_applies,
     .apply = expert_pass},
    {.name = "sharded_weights",
     .summary = "output projections in shards over dp; all_gather while attention runs",
     .applies = sharded_weights_applies,
     .apply = sharded_weights_pass},
    {.name = "joined_head",
     .summary = "the LM head over dp as well, for the sampled rows of all dp ranks at once",
     .applies = joined_head_applies,
     .apply = joined_head_pass},
    {.name = "split_reduce",
     .summary = "without sp: all_reduce becomes reduce_scatter and all_gather",
     .applies = split_reduce_applies,
     .apply = split_reduce_pass},
    {.name = "sequence",
     .summary = "norms on tokens / tp; all_reduce becomes reduce_scatter and all_gather",
     .applies = sequence_applies,
     .apply = sequence_pass},
    {.name = "pipeline",
     .summary = "layers over stages, micro-batches one after another, send_recv in between",
     .applies = pipeline_applies,
     .apply = pipeline_pass},
    {.name = "two_batch",
     .summary = "two micro-batches take turns; collectives of one run while the other computes",
     .applies = two_batch_applies,
     .apply = two_batch_pass},
    {.name = "room_for_collectives",
     .summary = "kernels beside collectives of other streams leave them SMs",
     .applies = room_for_collectives_applies,
     .apply = room_for_collectives_pass},
});

}  // namespace

int num_ffn_ranks(const Mesh& mesh) { return mesh.ffn_instances * mesh.ffn_tp; }
int num_ranks(const Mesh& mesh) {
  return mesh.dp * mesh.tp * mesh.cp * mesh.pp + num_ffn_ranks(mesh);
}

std::span<const ParallelPass> parallel_passes() { return kPasses; }

Plan parallelize(const Plan& plan, const Mesh& mesh, std::int64_t fullest_rows) {
  if (afd_applies(plan, mesh)) return afd_pass(plan, mesh, fullest_rows);
  const Mesh of_weights = weights_mesh(mesh);
  Plan result;
  const Plan* latest = &plan;
  for (const ParallelPass& pass : kPasses) {
    const Mesh& seen = pass.knows_cp ? mesh : of_weights;
    if (!pass.applies(*latest, seen)) continue;
    result = pass.apply == kDataPass ? data_pass(*latest, seen, fullest_rows)
                                     : pass.apply(*latest, seen);
    latest = &result;
  }
  if (latest == &plan) return plan;
  return result;
}

namespace {

// The most that `bytes_of(model of the layers of one stage)` is of any stage.
template <typename BytesOf>
Bytes most_of_stages(ModelConfig model, int pp, const BytesOf& bytes_of) {
  const std::vector<LayerConfig> layers = std::exchange(model.layers, {});
  const std::vector<std::size_t> stages = stages_of_layers(layers, pp);
  Bytes most;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    model.layers.push_back(layers[i]);
    if (i + 1 < layers.size() && stages[i + 1] == stages[i]) continue;
    most = std::max(most, bytes_of(model));
    model.layers.clear();
  }
  return most;
}

}  // namespace

Bytes kv_bytes_per_rank(const ModelConfig& model, const Mesh& mesh, DType kv_dtype,
                        std::int64_t context) {
  ModelConfig part = model;
  part.num_key_value_heads = std::max<std::int64_t>(1, model.num_key_value_heads / mesh.tp);
  context = ceil_div(context, mesh.cp);
  return most_of_stages(std::move(part), mesh.pp, [&](const ModelConfig& stage) {
    return kv_bytes(stage, kv_dtype, context);
  });
}

Bytes state_bytes_per_rank(const ModelConfig& model, const Mesh& mesh) {
  return most_of_stages(model, mesh.pp, state_bytes) / mesh.tp;
}

}  // namespace orrery

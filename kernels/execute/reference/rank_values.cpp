#include "kernels/execute/reference/rank_values.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/dense/quantize/reference.h"
#include "sim/plan/liveness.h"

namespace orrery::reference {

RankValues::RankValues(const ModelSetup& setup, const Plan& plan, std::vector<KeptByRank>& kept)
    : setup_(setup),
      plan_(plan),
      kept_(kept),
      copies_(num_copies(plan)),
      is_gathered_(gathered_weights(plan)) {
  for (int rank = 0; rank < setup_.grid.size(); ++rank) {
    shards_.push_back(weight_shards(plan, rank, setup_.numbers.routing.expert_of_slot));
    kv_.push_back(kv_layers(plan, rank));
    now_.emplace_back(plan.tensors().size());
  }
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& input = plan.tensors()[i];
    if (input.role != TensorRole::kInput) continue;
    for (const int rank : plan.ranks(input.ranks)) {
      now_[static_cast<std::size_t>(rank)][i].assign(static_cast<std::size_t>(num_elements(input)),
                                                     0.0);
    }
  }
}

const Tensor& RankValues::tensor(TensorId id) const {
  return plan_.tensors()[static_cast<std::size_t>(id)];
}

const Values& RankValues::now(TensorId id, int rank) const {
  return now_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)];
}

const Values& RankValues::written(const Op& op, TensorId id, int rank) const {
  const Values& found = now(id, rank);
  if (!found.empty()) return found;
  throw std::invalid_argument("op \"" + printed_name(op) + "\" reads \"" + tensor(id).name +
                              "\", which nothing has written on rank " + std::to_string(rank));
}

const Values& RankValues::operand(const Op& op, TensorId id, int rank, std::int64_t copy) {
  return is_kept_weight(id) ? weight(id, rank, copy) : written(op, id, rank);
}

Values RankValues::rows_of_view(const Values& all, const TensorView& view) const {
  const auto begin = all.begin() + view.first_row * row_size(view);
  return {begin, begin + view.num_rows * row_size(view)};
}

Values RankValues::columns_of_view(const Op& op, const TensorView& view, int rank) const {
  const Values& all = written(op, view, rank);
  if (view.has_all_columns()) return all;
  return columns_of(all, tensor(view).axes.back().size, view.first_column, view.num_columns);
}

void RankValues::write(TensorId id, int rank, Values result) {
  now_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(id)] =
      rounded(std::move(result), tensor(id), setup_.rounding);
}

void RankValues::write_view(const TensorView& view, int rank, Values result) {
  if (view.has_all_rows()) return write(view, rank, std::move(result));
  Values all = now(view.tensor, rank);
  all.resize(static_cast<std::size_t>(num_elements(tensor(view))));
  std::ranges::copy(result, all.begin() + view.first_row * row_size(view));
  write(view, rank, std::move(all));
}

bool RankValues::is_kept_weight(TensorId id) const {
  return tensor(id).role == TensorRole::kWeight && !is_gathered_[static_cast<std::size_t>(id)];
}

Values RankValues::weight_of_ranks(const Op& op, TensorId id, std::int64_t copy) {
  Values joined;
  for (const int rank : plan_.ranks(op.ranks)) {
    const Values& own = weight(id, rank, copy);
    joined.insert(joined.end(), own.begin(), own.end());
  }
  return joined;
}

KvLayer* RankValues::kv_layer(TensorId id, int rank, std::int64_t copy) {
  const KvLayers& layers = kv_[static_cast<std::size_t>(rank)];
  std::vector<KvLayer>& kv = kept_[static_cast<std::size_t>(rank)].kv;
  if (std::ssize(kv) < layers.count) kv.resize(static_cast<std::size_t>(layers.count));
  KvLayer& layer = kv[static_cast<std::size_t>(layers.layer(id, static_cast<std::int32_t>(copy)))];
  if (layer.keys.empty()) {
    const Axis& width = tensor(id).axes.back();
    const bool is_latent = width.name == axis::kLatent;
    layer.keys.assign(static_cast<std::size_t>(setup_.num_kv_blocks * setup_.block_size *
                                               width.size / (is_latent ? 1 : 2)),
                      0.0);
    if (!is_latent) layer.values = layer.keys;
    layer.has.assign(static_cast<std::size_t>(setup_.num_kv_blocks * setup_.block_size), 0.0);
  }
  return &layer;
}

const Values& RankValues::weight(TensorId id, int rank, std::int64_t copy) {
  const auto i = static_cast<std::size_t>(id);
  const WeightShards& shards = shards_[static_cast<std::size_t>(rank)];
  const WeightShard& shard = shards.shards[static_cast<std::size_t>(shards.tensor_shard[i])];
  if (copies_[i] == 1) copy = 0;
  const std::int64_t of_run = shard.first_copy + copy;
  Values& found = kept_[static_cast<std::size_t>(rank)].weights[{shard.name, of_run}];
  if (!found.empty()) return found;
  const StoredWeight stored = stored_weight(shard, copy, tensor(id).dtype, setup_.seed);
  found.assign(stored.values.begin(), stored.values.end());
  for (std::size_t at = 0; at < found.size() && !stored.scales.empty(); ++at) {
    found[at] *= stored.scales[at / static_cast<std::size_t>(shard.columns)];
  }
  return found;
}

std::int64_t RankValues::row_size(TensorId id) const {
  return num_elements(tensor(id)) / tensor(id).axes.front().size;
}

}  // namespace orrery::reference

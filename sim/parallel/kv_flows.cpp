#include "sim/parallel/kv_flows.h"

#include <algorithm>
#include <numeric>

#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

// How KV heads lie on the tp ranks of a stage: each rank has `held` of them, `sharing` ranks the
// same ones.
struct HeadSplit {
  std::int64_t held;
  std::int64_t sharing;
  HeadSplit(std::int64_t heads, std::int64_t tp)
      : held(std::max<std::int64_t>(heads / tp, 1)),
        sharing(std::max<std::int64_t>(tp / heads, 1)) {}
  [[nodiscard]] std::int64_t first_head(std::int64_t rank) const { return rank / sharing * held; }
  // Of the ranks that hold `head` the one that sends it to rank `to`.
  [[nodiscard]] std::int64_t sender(std::int64_t head, std::int64_t to) const {
    return head / held * sharing + to % sharing;
  }
};

}  // namespace

Bytes KvFlows::total() const { return std::accumulate(bytes.begin(), bytes.end(), Bytes(0)); }

Bytes KvFlows::most_sent() const {
  Bytes most;
  for (std::size_t i = 0; i < num_senders; ++i) {
    Bytes sum;
    for (std::size_t j = 0; j < num_receivers; ++j) sum += at(i, j);
    most = std::max(most, sum);
  }
  return most;
}

Bytes KvFlows::most_received() const {
  Bytes most;
  for (std::size_t j = 0; j < num_receivers; ++j) {
    Bytes sum;
    for (std::size_t i = 0; i < num_senders; ++i) sum += at(i, j);
    most = std::max(most, sum);
  }
  return most;
}

KvFlows kv_flows(const ModelConfig& model, const Mesh& from, const Mesh& to, DType kv_dtype) {
  const std::vector<std::size_t> from_stages = stages_of_layers(model.layers, from.pp);
  const std::vector<std::size_t> to_stages = stages_of_layers(model.layers, to.pp);
  const auto from_tp = static_cast<std::size_t>(from.tp);
  const auto to_tp = static_cast<std::size_t>(to.tp);
  KvFlows flows{.num_senders = static_cast<std::size_t>(from.pp) * from_tp,
                .num_receivers = static_cast<std::size_t>(to.pp) * to_tp};
  flows.bytes.resize(flows.num_senders * flows.num_receivers);
  ModelConfig one = model;
  one.num_key_value_heads = 1;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    one.layers = {model.layers[i]};
    const Bytes head = kv_bytes(one, kv_dtype, 1);
    // A latent is one head that all ranks share.
    const bool is_latent = model.layers[i].attention == AttentionKind::kMla;
    const std::int64_t heads = is_latent ? 1 : model.num_key_value_heads;
    const HeadSplit sends(heads, from.tp);
    const HeadSplit receives(heads, to.tp);
    for (std::size_t rank = 0; rank < to_tp; ++rank) {
      const auto to_rank = static_cast<std::int64_t>(rank);
      const std::int64_t first = receives.first_head(to_rank);
      for (std::int64_t k = first; k < first + receives.held; ++k) {
        const std::size_t sender =
            from_stages[i] * from_tp + static_cast<std::size_t>(sends.sender(k, to_rank));
        flows.bytes[sender * flows.num_receivers + to_stages[i] * to_tp + rank] += head;
      }
    }
  }
  return flows;
}

}  // namespace orrery

#include "sim/parallel/kv_flows.h"

#include <algorithm>
#include <numeric>
#include <utility>

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

// The pipeline stage of each layer, and which of its layers it is there.
struct StagedLayers {
  std::vector<std::size_t> stage;
  std::vector<std::int64_t> place;
  StagedLayers(const ModelConfig& model, int pp)
      : stage(stages_of_layers(model.layers, pp)), place(stage.size()) {
    for (std::size_t i = 1; i < stage.size(); ++i) {
      place[i] = stage[i] == stage[i - 1] ? place[i - 1] + 1 : 0;
    }
  }
};

// Whether `next`, of one layer, is the same heads one layer on.
bool goes_on(const KvPart& part, KvPart next) {
  next.layer -= part.num_layers;
  next.sender_layer -= part.num_layers;
  next.receiver_layer -= part.num_layers;
  next.num_layers = part.num_layers;
  return next == part;
}

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

std::vector<KvPart> kv_parts(const ModelConfig& model, const Mesh& from, const Mesh& to) {
  const StagedLayers from_layers(model, from.pp);
  const StagedLayers to_layers(model, to.pp);
  const auto from_tp = static_cast<std::size_t>(from.tp);
  const auto to_tp = static_cast<std::size_t>(to.tp);
  std::vector<KvPart> parts;
  // Those of the layer before, which this one's may go on.
  std::vector<std::size_t> before;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    // A latent is one head that all ranks share.
    const bool is_latent = model.layers[i].attention == AttentionKind::kMla;
    const std::int64_t heads = is_latent ? 1 : model.num_key_value_heads;
    const HeadSplit sends(heads, from.tp);
    const HeadSplit receives(heads, to.tp);
    std::vector<std::size_t> of_layer;
    const auto add = [&](const KvPart& part) {
      const auto same = std::ranges::find_if(
          before, [&](std::size_t known) { return goes_on(parts[known], part); });
      if (same != before.end()) {
        ++parts[*same].num_layers;
        of_layer.push_back(*same);
        return;
      }
      of_layer.push_back(parts.size());
      parts.push_back(part);
    };
    for (std::size_t rank = 0; rank < to_tp; ++rank) {
      const auto to_rank = static_cast<std::int64_t>(rank);
      const std::int64_t first = receives.first_head(to_rank);
      const std::int64_t end = first + receives.held;
      for (std::int64_t head = first, next = first; head < end; head = next) {
        const std::int64_t sender = sends.sender(head, to_rank);
        while (next < end && sends.sender(next, to_rank) == sender) ++next;
        add({.sender = from_layers.stage[i] * from_tp + static_cast<std::size_t>(sender),
             .receiver = to_layers.stage[i] * to_tp + rank,
             .layer = static_cast<std::int64_t>(i),
             .sender_layer = from_layers.place[i],
             .receiver_layer = to_layers.place[i],
             .num_layers = 1,
             .sender_head = head - sends.first_head(sender),
             .receiver_head = head - first,
             .num_heads = next - head});
      }
    }
    before = std::move(of_layer);
  }
  return parts;
}

KvFlows kv_flows(const ModelConfig& model, const Mesh& from, const Mesh& to, DType kv_dtype) {
  KvFlows flows{.num_senders = static_cast<std::size_t>(from.pp * from.tp),
                .num_receivers = static_cast<std::size_t>(to.pp * to.tp)};
  flows.bytes.resize(flows.num_senders * flows.num_receivers);
  ModelConfig one = model;
  one.num_key_value_heads = 1;
  for (const KvPart& part : kv_parts(model, from, to)) {
    for (std::int64_t i = 0; i < part.num_layers; ++i) {
      one.layers = {model.layers[static_cast<std::size_t>(part.layer + i)]};
      flows.bytes[part.sender * flows.num_receivers + part.receiver] +=
          kv_bytes(one, kv_dtype, 1) * static_cast<double>(part.num_heads);
    }
  }
  return flows;
}

}  // namespace orrery

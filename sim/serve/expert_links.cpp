#include "sim/serve/expert_links.h"

#include <algorithm>
#include <map>

#include "sim/parallel/rewrite.h"
#include "sim/parallel/routed_layer.h"

namespace orrery {

std::vector<std::vector<int>> ranks_of_blocks(const ModelConfig& model, const Mesh& mesh) {
  Mesh stage = weights_mesh(mesh);
  stage.expert_load = {};  // where blocks lie does not depend on it
  const ExpertGrid grid(stage, model.num_experts, model.num_experts_per_tok, 1);
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(stage.ep));
  for (int rank = 0; rank < stage.dp * stage.tp; ++rank) {
    ranks[static_cast<std::size_t>(grid.block_of(rank))].push_back(rank);
  }
  return ranks;
}

Seconds moving_time(const Machine& machine, std::span<const std::vector<int>> ranks_of_block,
                    std::span<const ExpertMove> moves, Bytes expert) {
  std::map<int, Bytes> carried;
  Seconds latency;
  for (const ExpertMove& move : moves) {
    const std::vector<int>& from = ranks_of_block[static_cast<std::size_t>(move.from)];
    const std::vector<int>& to = ranks_of_block[static_cast<std::size_t>(move.to)];
    for (std::size_t slice = 0; slice < to.size(); ++slice) {
      const Route route = machine.route(from[slice], to[slice]);
      for (const int link : route.links) carried[link] += expert / static_cast<double>(to.size());
      latency = std::max(latency, route.latency);
    }
  }
  Seconds slowest;
  for (const auto& [link, bytes] : carried) {
    slowest = std::max(slowest, bytes / machine.links[static_cast<std::size_t>(link)].rate);
  }
  return slowest + latency;
}

Bytes expert_bytes(const ModelConfig& model, const LoweringOptions& options) {
  const Plan plan = lower(model, Batch{.num_decodes = 1, .decode_context = 1}, options);
  const std::vector<std::int64_t> copies = num_copies(plan);
  Bytes all;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role == TensorRole::kWeight && has_axis(tensor, axis::kExperts)) {
      all += bytes_of(tensor) * static_cast<double>(copies[i]);
    }
  }
  return all / static_cast<double>(model.num_experts * num_routed_layers(model));
}

std::int64_t num_routed_layers(const ModelConfig& model) {
  return std::ranges::count(model.layers, FfnKind::kMoe, &LayerConfig::ffn);
}

std::int64_t most_routed_layers(const ModelConfig& model, int pp) {
  std::int64_t most = 0;
  auto first = model.layers.begin();
  for (const std::int64_t layers : stage_shares(std::ssize(model.layers), pp)) {
    most = std::max<std::int64_t>(
        most, std::count_if(first, first + layers,
                            [](const LayerConfig& layer) { return layer.ffn == FfnKind::kMoe; }));
    first += layers;
  }
  return most;
}

}  // namespace orrery

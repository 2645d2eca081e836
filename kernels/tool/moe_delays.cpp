#include "kernels/tool/moe_delays.h"

#include <numeric>
#include <random>
#include <stdexcept>
#include <variant>
#include <vector>

#include "sim/cost/moe_stragglers.h"

namespace orrery::tool {
namespace {

// In the order of the layers.
std::vector<Seconds> drawn(const MoeCase& one, Seconds exchange, int sets,
                           std::mt19937_64& random) {
  std::vector<Seconds> delays(static_cast<std::size_t>(sets), exchange);
  if (one.jitter == kNoJitter) return delays;
  const MoeJitter jitter = published_jitter(one.jitter);
  for (int i = 0; i < sets; ++i) {
    delays[static_cast<std::size_t>(i)] =
        last_rank_delay(jitter, num_ranks(one.mesh), (i + 0.5) / sets) * exchange;
  }
  for (std::size_t i = delays.size(); i > 1; --i) std::swap(delays[i - 1], delays[random() % i]);
  return delays;
}

std::vector<int> late_ranks(const MoeCase& one, std::mt19937_64& random) {
  const int ranks = num_ranks(one.mesh);
  if (one.jitter != kNoJitter) {
    return {static_cast<int>(random() % static_cast<std::uint64_t>(ranks))};
  }
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return one.are_all_late ? all : std::vector<int>{ranks - 1};
}

std::string first_op(const Plan& layer, int rank) {
  for (const Op& op : layer.ops()) {
    if (layer.contains(op.ranks, rank)) return op.name;
  }
  throw std::invalid_argument("rank " + std::to_string(rank) + " has no op that could be late");
}

std::string results_op(const Plan& layer, int rank) {
  std::string name;
  for (const Op& op : layer.ops()) {
    if (std::holds_alternative<CommOp>(op.body) && layer.contains(op.ranks, rank)) name = op.name;
  }
  if (!name.empty()) return name;
  throw std::invalid_argument(
      "results are late, but come back within a kernel; expected late=US without a colon");
}

}  // namespace

MoeDelays layer_delays(const MoeCase& one, const Plan& layer, int sets) {
  MoeDelays delays;
  std::mt19937_64 random(one.seed);
  const auto add = [&](Seconds late, std::string (*op_of)(const Plan&, int), Seconds& mean) {
    if (late == Seconds(0)) return;
    const std::vector<Seconds> of_layers = drawn(one, late, sets, random);
    for (int i = 0; i < sets; ++i) {
      const Seconds delay = of_layers[static_cast<std::size_t>(i)];
      const std::string suffix = sets == 1 ? std::string() : "#" + std::to_string(i);
      for (const int rank : late_ranks(one, random)) {
        delays.before[{rank, op_of(layer, rank) + suffix}] += delay;
      }
      mean += delay / sets;
    }
  };
  add(one.late, first_op, delays.at_begin);
  add(one.late_results, results_op, delays.at_results);
  return delays;
}

}  // namespace orrery::tool

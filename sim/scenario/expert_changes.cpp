#include "sim/scenario/expert_changes.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/parallel/expert_moves.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/expert_site.h"
#include "sim/serve/expert_links.h"

namespace orrery {

namespace {

// Which node the first rank of each block is on.
std::vector<std::int64_t> nodes_of_blocks(const Machine& machine,
                                          std::span<const std::vector<int>> ranks) {
  std::vector<std::int64_t> nodes;
  nodes.reserve(ranks.size());
  for (const std::vector<int>& block : ranks) nodes.push_back(machine.node_of(block.front()));
  return nodes;
}

ExpertSite site_of(const Scenario& side) {
  return expert_site(side, side, side.mesh, side.precision);
}

void add_eplb(const Scenario& side, const Machine& machine, ExpertChanges& changes) {
  const ModelConfig& model = side.model_config;
  changes.eplb = side.moe.eplb;
  changes.expert = expert_bytes(model, lowering_options(side));
  changes.num_layers = num_routed_layers(model);
  changes.stage_layers = most_routed_layers(model, side.mesh.pp);
  changes.place = [model, mesh = side.mesh, spec = side.moe,
                   site = site_of(side)](std::span<const double> choices) {
    return rebalanced(choices, spec, model, mesh, site);
  };
  std::vector<std::vector<int>> ranks = ranks_of_blocks(model, side.mesh);
  std::vector<std::int64_t> nodes = nodes_of_blocks(machine, ranks);
  changes.moves = [&machine, ranks = std::move(ranks), nodes = std::move(nodes),
                   expert = changes.expert](const ExpertPlacement& before,
                                            const ExpertPlacement& after) {
    const std::vector<ExpertMove> moves = expert_moves(before, after, nodes);
    return ExpertChanges::Moves{.num_slots = std::ssize(moves),
                                .time = moving_time(machine, ranks, moves, expert)};
  };
}

}  // namespace

bool has_changing_experts(const Scenario& side) {
  return side.expert_load.drift.has_value() || (side.moe.eplb && side.mesh.ep > 1);
}

ExpertChanges expert_changes(const Scenario& side, const Machine& machine) {
  const ModelConfig& model = side.model_config;
  ExpertChanges changes{.drift = side.expert_drift};
  changes.drift.seed = side.seed;
  const bool is_apart = side.mesh.ep > 1;
  changes.first =
      is_apart ? first_placement(side.expert_shares, side.moe, model, side.mesh, site_of(side))
               : placement_in_order(model.num_experts, 0, 1);
  if (side.moe.eplb && is_apart) add_eplb(side, machine, changes);
  return changes;
}

}  // namespace orrery

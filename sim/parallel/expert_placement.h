#pragma once

// Where routed experts and their copies lie, so that ranks have equal work: experts that are chosen
// often get copies in redundant slots, and slots are dealt out to blocks of slots (one block for
// each of ep ranks, or for the ranks that share it by columns). Two levels, as DeepSeek-V3's
// expert-parallel load balancer has them: whole groups of experts to nodes first, so that tokens
// whose groups are limited stay on few nodes, then copies within each node.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/model/expert_load.h"

namespace orrery {

// Which expert each slot holds, block after block. Each expert has at least one slot; choices of an
// expert are spread over its slots evenly.
struct ExpertPlacement {
  std::vector<std::int64_t> expert_of_slot;
  std::int64_t num_blocks = 1;
  bool operator==(const ExpertPlacement&) const = default;
};

// In all of these `choices` has how often each expert is chosen, in any unit, at least one of them
// above 0 and none below. They throw std::invalid_argument when that does not hold, or when blocks
// do not divide experts and copies.

// Experts in order, then copies of experts 0, 1, ... again: what a deployment starts with.
ExpertPlacement placement_in_order(std::int64_t num_experts, std::int64_t num_redundant,
                                   std::int64_t num_blocks);

// One level. Each redundant slot goes to the expert that is then chosen most for each of its slots,
// which makes the most chosen slot as small as it can be; slots go, the most chosen first, to the
// block with the least so far that has room (longest processing time first; Graham, SIAM Journal on
// Applied Mathematics 17(2), 1969), among equals to one without a copy of the expert. Experts in
// order with copies in their own blocks are kept where that is as good: never slower than experts
// without copies.
ExpertPlacement balance_experts(std::span<const double> choices, std::int64_t num_redundant,
                                std::int64_t num_blocks);

// Two levels: `num_groups` groups of neighbouring experts go to nodes whole, as many to each, the
// most chosen group first to the node with the least; then each node as above, with its part of the
// redundant slots. Throws besides when nodes do not divide groups, redundant slots or blocks, or
// groups do not divide experts.
ExpertPlacement balance_experts_on_nodes(std::span<const double> choices,
                                         std::int64_t num_redundant, std::int64_t num_blocks,
                                         std::int64_t num_nodes, std::int64_t num_groups);

// Choices that fall on each block, in the unit of `choices`; they add to those of all experts.
// Throws std::invalid_argument when the placement names an expert that is not there, or has none of
// one.
std::vector<double> block_choices(const ExpertPlacement& placement,
                                  std::span<const double> choices);
// The slowest block against the mean, at least 1.
double imbalance(const ExpertPlacement& placement, std::span<const double> choices);

// The load of the slots: what Mesh::expert_load takes. `load` is of `num_experts` experts of which
// a token chooses topk. Throws as choice_probabilities and block_choices.
ExpertLoad placed_load(const ExpertPlacement& placement, const ExpertLoad& load,
                       std::int64_t num_experts, std::int64_t topk);

}  // namespace orrery

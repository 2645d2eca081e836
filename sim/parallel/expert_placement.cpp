#include "sim/parallel/expert_placement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/model/expert_load_sources.h"

namespace orrery {
namespace {

using Ids = std::vector<std::int64_t>;

void check_slots(std::int64_t num_experts, std::int64_t num_redundant, std::int64_t num_blocks) {
  const auto slots = num_experts + num_redundant;
  if (num_experts >= 1 && num_redundant >= 0 && num_blocks >= 1 && slots % num_blocks == 0) return;
  throw std::invalid_argument(std::to_string(num_experts) + " experts and " +
                              std::to_string(num_redundant) + " redundant ones on " +
                              std::to_string(num_blocks) +
                              " blocks, expected a number of blocks that divides their sum");
}

void check_choices(std::span<const double> choices) {
  const bool has_bad = std::ranges::any_of(
      choices, [](double value) { return !(value >= 0) || !std::isfinite(value); });
  if (!has_bad && std::ranges::any_of(choices, [](double value) { return value > 0; })) return;
  throw std::invalid_argument(
      "choices of experts are all 0, or one is no number of at least 0, expected how often each is "
      "chosen");
}

// Choices of each slot: those of its expert, spread over its slots.
std::vector<double> slot_choices(const ExpertPlacement& placement,
                                 std::span<const double> choices) {
  Ids copies(choices.size());
  for (const std::int64_t expert : placement.expert_of_slot) {
    if (expert < 0 || expert >= std::ssize(choices)) {
      throw std::invalid_argument("a slot holds expert " + std::to_string(expert) +
                                  ", expected 0 to " + std::to_string(choices.size() - 1));
    }
    ++copies[static_cast<std::size_t>(expert)];
  }
  if (const auto none = std::ranges::find(copies, 0); none != copies.end()) {
    throw std::invalid_argument("no slot holds expert " + std::to_string(none - copies.begin()) +
                                ", expected at least one for each expert");
  }
  std::vector<double> result;
  for (const std::int64_t expert : placement.expert_of_slot) {
    const auto i = static_cast<std::size_t>(expert);
    result.push_back(choices[i] / static_cast<double>(copies[i]));
  }
  return result;
}

std::vector<double> sums_of_blocks(const ExpertPlacement& placement,
                                   std::span<const double> choices) {
  const std::vector<double> slots = slot_choices(placement, choices);
  check_slots(std::ssize(slots), 0, placement.num_blocks);
  const auto room = std::ssize(slots) / placement.num_blocks;
  std::vector<double> blocks;
  for (auto first = slots.begin(); first != slots.end(); first += room) {
    blocks.push_back(std::accumulate(first, first + room, 0.0));
  }
  return blocks;
}

// Slots for each expert.
Ids num_copies(std::span<const double> choices, std::int64_t num_redundant) {
  Ids copies(choices.size(), 1);
  const auto each = [&](std::size_t e) { return choices[e] / static_cast<double>(copies[e]); };
  for (std::int64_t i = 0; i < num_redundant; ++i) {
    std::size_t most = 0;
    for (std::size_t e = 1; e < copies.size(); ++e) {
      if (each(e) > each(most)) most = e;
    }
    ++copies[most];
  }
  return copies;
}

struct ExpertSlot {
  std::int64_t expert = 0;
  double choices = 0;
};

// Slots to blocks with equally many, the most chosen first to the block with the least; among
// equals, to one without a copy of the same expert.
std::vector<Ids> deal(std::vector<ExpertSlot> slots, std::int64_t num_blocks) {
  std::ranges::stable_sort(slots, std::greater(), &ExpertSlot::choices);
  const std::size_t room = slots.size() / static_cast<std::size_t>(num_blocks);
  std::vector<Ids> blocks(static_cast<std::size_t>(num_blocks));
  std::vector<double> sums(blocks.size());
  for (const ExpertSlot& slot : slots) {
    const auto order = [&](std::size_t b) {
      const bool has_expert = std::ranges::find(blocks[b], slot.expert) != blocks[b].end();
      return std::pair(sums[b], has_expert);
    };
    std::size_t best = blocks.size();
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].size() < room && (best == blocks.size() || order(b) < order(best))) best = b;
    }
    blocks[best].push_back(slot.expert);
    sums[best] += slot.choices;
  }
  for (Ids& block : blocks) std::ranges::sort(block);
  return blocks;
}

// Experts in order, redundant slots of a block with copies of its own experts: as slow as without
// copies.
ExpertPlacement in_own_blocks(std::int64_t num_experts, std::int64_t num_redundant,
                              std::int64_t num_blocks) {
  const std::int64_t own = num_experts / num_blocks;
  const std::int64_t room = own + num_redundant / num_blocks;
  ExpertPlacement placement{.num_blocks = num_blocks};
  for (std::int64_t block = 0; block < num_blocks; ++block) {
    for (std::int64_t i = 0; i < room; ++i) {
      placement.expert_of_slot.push_back(block * own + i % own);
    }
  }
  return placement;
}

// One level, where choices may be 0 throughout.
ExpertPlacement balanced(std::span<const double> choices, std::int64_t num_redundant,
                         std::int64_t num_blocks) {
  const Ids copies = num_copies(choices, num_redundant);
  std::vector<ExpertSlot> slots;
  for (std::size_t e = 0; e < choices.size(); ++e) {
    const double each = choices[e] / static_cast<double>(copies[e]);
    slots.insert(slots.end(), static_cast<std::size_t>(copies[e]),
                 {static_cast<std::int64_t>(e), each});
  }
  ExpertPlacement dealt{.num_blocks = num_blocks};
  for (const Ids& block : deal(std::move(slots), num_blocks)) {
    dealt.expert_of_slot.insert(dealt.expert_of_slot.end(), block.begin(), block.end());
  }
  const std::int64_t num_experts = std::ssize(choices);
  if (num_experts % num_blocks != 0) return dealt;
  const ExpertPlacement kept = in_own_blocks(num_experts, num_redundant, num_blocks);
  const auto slowest = [&](const ExpertPlacement& placement) {
    return std::ranges::max(sums_of_blocks(placement, choices));
  };
  return slowest(kept) <= slowest(dealt) ? kept : dealt;
}

}  // namespace

ExpertPlacement placement_in_order(std::int64_t num_experts, std::int64_t num_redundant,
                                   std::int64_t num_blocks) {
  check_slots(num_experts, num_redundant, num_blocks);
  ExpertPlacement placement{.num_blocks = num_blocks};
  for (std::int64_t slot = 0; slot < num_experts + num_redundant; ++slot) {
    placement.expert_of_slot.push_back(slot % num_experts);
  }
  return placement;
}

ExpertPlacement balance_experts(std::span<const double> choices, std::int64_t num_redundant,
                                std::int64_t num_blocks) {
  check_slots(std::ssize(choices), num_redundant, num_blocks);
  check_choices(choices);
  return balanced(choices, num_redundant, num_blocks);
}

ExpertPlacement balance_experts_on_nodes(std::span<const double> choices,
                                         std::int64_t num_redundant, std::int64_t num_blocks,
                                         std::int64_t num_nodes, std::int64_t num_groups) {
  const std::int64_t num_experts = std::ssize(choices);
  check_slots(num_experts, num_redundant, num_blocks);
  check_choices(choices);
  if (num_nodes < 1 || num_groups < 1 || num_groups % num_nodes != 0 ||
      num_redundant % num_nodes != 0 || num_blocks % num_nodes != 0 ||
      num_experts % num_groups != 0) {
    throw std::invalid_argument(
        std::to_string(num_groups) + " groups of " + std::to_string(num_experts) + " experts, " +
        std::to_string(num_redundant) + " redundant ones and " + std::to_string(num_blocks) +
        " blocks on " + std::to_string(num_nodes) +
        " nodes, expected nodes that divide groups, redundant experts and blocks, and groups that "
        "divide experts");
  }
  const std::int64_t group_size = num_experts / num_groups;
  std::vector<ExpertSlot> groups;
  for (std::int64_t group = 0; group < num_groups; ++group) {
    const auto first = choices.begin() + group * group_size;
    groups.push_back({group, std::accumulate(first, first + group_size, 0.0)});
  }
  ExpertPlacement placement{.num_blocks = num_blocks};
  for (const Ids& on_node : deal(std::move(groups), num_nodes)) {
    Ids experts;
    std::vector<double> part;
    for (const std::int64_t group : on_node) {
      for (std::int64_t i = 0; i < group_size; ++i) {
        experts.push_back(group * group_size + i);
        part.push_back(choices[static_cast<std::size_t>(experts.back())]);
      }
    }
    const ExpertPlacement node = balanced(part, num_redundant / num_nodes, num_blocks / num_nodes);
    for (const std::int64_t slot : node.expert_of_slot) {
      placement.expert_of_slot.push_back(experts[static_cast<std::size_t>(slot)]);
    }
  }
  return placement;
}

std::vector<double> block_choices(const ExpertPlacement& placement,
                                  std::span<const double> choices) {
  return sums_of_blocks(placement, choices);
}

double imbalance(const ExpertPlacement& placement, std::span<const double> choices) {
  check_choices(choices);
  const std::vector<double> blocks = block_choices(placement, choices);
  const double sum = std::accumulate(blocks.begin(), blocks.end(), 0.0);
  return std::ranges::max(blocks) / (sum / static_cast<double>(blocks.size()));
}

ExpertLoad placed_load(const ExpertPlacement& placement, const ExpertLoad& load,
                       std::int64_t num_experts, std::int64_t topk) {
  const std::vector<double> chosen = choice_probabilities(load, num_experts, topk);
  return load_of_probabilities(slot_choices(placement, chosen), topk);
}

}  // namespace orrery

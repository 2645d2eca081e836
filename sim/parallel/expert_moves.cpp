#include "sim/parallel/expert_moves.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

namespace orrery {
namespace {

void check_alike(const ExpertPlacement& before, const ExpertPlacement& after) {
  const auto slots = std::ssize(before.expert_of_slot);
  if (before.num_blocks == after.num_blocks && slots == std::ssize(after.expert_of_slot) &&
      before.num_blocks >= 1 && slots % before.num_blocks == 0) {
    return;
  }
  throw std::invalid_argument("experts move from " + std::to_string(slots) + " slots in " +
                              std::to_string(before.num_blocks) + " blocks to " +
                              std::to_string(after.expert_of_slot.size()) + " in " +
                              std::to_string(after.num_blocks) + ", expected as many of both");
}

}  // namespace

ExpertPlacement keeping_slots(const ExpertPlacement& before, const ExpertPlacement& after) {
  check_alike(before, after);
  const std::int64_t room = std::ssize(after.expert_of_slot) / after.num_blocks;
  ExpertPlacement kept = after;
  for (std::int64_t block = 0; block < after.num_blocks; ++block) {
    const auto first = after.expert_of_slot.begin() + block * room;
    std::vector<std::int64_t> left(first, first + room);
    std::vector<std::int64_t> open;  // slots whose expert leaves
    for (std::int64_t slot = block * room; slot < (block + 1) * room; ++slot) {
      const std::int64_t held = before.expert_of_slot[static_cast<std::size_t>(slot)];
      const auto stays = std::ranges::find(left, held);
      if (stays == left.end()) {
        open.push_back(slot);
        continue;
      }
      kept.expert_of_slot[static_cast<std::size_t>(slot)] = held;
      left.erase(stays);
    }
    for (std::size_t i = 0; i < open.size(); ++i) {
      kept.expert_of_slot[static_cast<std::size_t>(open[i])] = left[i];
    }
  }
  return kept;
}

std::vector<ExpertMove> expert_moves(const ExpertPlacement& before, const ExpertPlacement& after,
                                     std::span<const std::int64_t> node_of_block) {
  check_alike(before, after);
  if (std::ssize(node_of_block) != before.num_blocks) {
    throw std::invalid_argument("found nodes of " + std::to_string(node_of_block.size()) +
                                " blocks, expected of " + std::to_string(before.num_blocks));
  }
  const std::int64_t room = std::ssize(before.expert_of_slot) / before.num_blocks;
  const auto node = [&](std::int64_t block) {
    return node_of_block[static_cast<std::size_t>(block)];
  };
  std::vector<std::int64_t> num_sent(node_of_block.size());
  std::vector<ExpertMove> moves;
  for (std::int64_t slot = 0; slot < std::ssize(after.expert_of_slot); ++slot) {
    const std::int64_t expert = after.expert_of_slot[static_cast<std::size_t>(slot)];
    if (expert == before.expert_of_slot[static_cast<std::size_t>(slot)]) continue;
    ExpertMove move{.expert = expert, .from = -1, .to = slot / room};
    const auto order = [&](std::int64_t block) {
      return std::tuple(block != move.to, node(block) != node(move.to),
                        num_sent[static_cast<std::size_t>(block)]);
    };
    for (std::int64_t held = 0; held < std::ssize(before.expert_of_slot); ++held) {
      if (before.expert_of_slot[static_cast<std::size_t>(held)] != expert) continue;
      const std::int64_t block = held / room;
      if (move.from < 0 || order(block) < order(move.from)) move.from = block;
    }
    if (move.from < 0) {
      throw std::invalid_argument("no slot held expert " + std::to_string(expert) +
                                  " before, expected at least one of each expert");
    }
    if (move.from != move.to) ++num_sent[static_cast<std::size_t>(move.from)];
    moves.push_back(move);
  }
  return moves;
}

}  // namespace orrery

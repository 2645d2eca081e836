#pragma once

// What moves when experts are placed anew: copies of experts that a block of slots has not held.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/parallel/expert_placement.h"

namespace orrery {

// A slot of block `to` gets the weights of an expert from block `from`, which held it before;
// from == to: another copy within the block.
struct ExpertMove {
  std::int64_t expert = 0;
  std::int64_t from = 0;
  std::int64_t to = 0;
  bool operator==(const ExpertMove&) const = default;
};

// `after` with the slots of each block in another order: an expert that the block holds already
// keeps its slot (vLLM, distributed/eplb/policy: preserve_intragpu_slots). So no fewer slots can
// differ without other blocks. Throws std::invalid_argument unless both have as many blocks and
// slots.
ExpertPlacement keeping_slots(const ExpertPlacement& before, const ExpertPlacement& after);

// One for each slot that holds another expert after than before. Copies come from the own block
// where it held the expert, else from a block of the own node (`node_of_block`), else from any;
// among several from the one that has sent least so far. Throws as keeping_slots, or when no slot
// held an expert before, or unless each block has a node.
std::vector<ExpertMove> expert_moves(const ExpertPlacement& before, const ExpertPlacement& after,
                                     std::span<const std::int64_t> node_of_block);

}  // namespace orrery

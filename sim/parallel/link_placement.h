#pragma once

// Which rank holds which routed experts, by the links between ranks: experts that are chosen often
// lie where rows come to and leave fast. A block of slots is what a rank, or the ranks that share
// it by columns, hold (sim/parallel/expert_placement.h).
//
// The time of a block on which c choices of a token fall, and c_o on another block o:
//
//   x out = sum over o of tokens c_o sent row / rate to o
//   x in  = sum over o of tokens c sent row / rate from o
//   y out = sum over o of tokens c returned row / rate to o
//   y in  = sum over o of tokens c_o returned row / rate from o
//   links = max(x out, x in) + max(y out, y in)
//           or, where rows go back while others still come, as in a layer that is one kernel,
//           max(x out + y out, x in + y in)
//   work  = max(blocks tokens c row, sum over its slots of 1 - (1 - p)^(blocks tokens) expert)
//   time  = latency of the farthest other block to here and back + links + work
//
// with p the choices of a token on a slot. Links carry both directions at once. The layer is as
// late as its slowest block. Left out: links that several pairs share.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/parallel/expert_placement.h"
#include "sim/units/units.h"

namespace orrery {

// [from][to], of each two blocks; of a block to itself nothing is read.
struct BlockLinks {
  std::vector<std::vector<Seconds>> latency;
  std::vector<std::vector<BytesPerSecond>> rate;
};

// What a layer does with the tokens of a step.
struct ExpertWork {
  std::int64_t tokens = 0;  // of each block's ranks
  Bytes sent_row;           // to an expert
  Bytes returned_row;       // and its result
  Seconds row;              // of products
  Seconds expert;           // weights of one expert, read where it has rows
  bool overlaps = false;    // rows go back while others still come
};

// Of each block. `choices`: that a token chooses each expert. Throws std::invalid_argument as
// block_choices, and for links that are not of the blocks, a latency below 0 and a rate that is not
// positive.
std::vector<Seconds> block_times(const ExpertPlacement& placement, std::span<const double> choices,
                                 const BlockLinks& links, const ExpertWork& work);

// Starts from `start` and exchanges an expert of the slowest block for one of another as long as
// that makes the slowest block faster, or as slow and the others more even: the exchange that gains
// most first, among equals that of the first slots. Where `num_nodes` is above 1, which divides the
// blocks, only with blocks of its own node, so that groups of experts stay where they are.
// Deterministic; never slower than `start`. Throws as block_times.
ExpertPlacement place_by_links(ExpertPlacement start, std::span<const double> choices,
                               const BlockLinks& links, const ExpertWork& work,
                               std::int64_t num_nodes = 1);

}  // namespace orrery

#pragma once

// How a layer over several ranks tells its experts, and in which order a rank sorts the results of
// its tokens: one source for the kernel and for the model of who writes where
// (tests/kernels/fused_moe_writers_test.cpp). No CUDA.
//
// Experts are told by slots: each rank's shared ones, and behind them its routed ones.
//
//   rank      0                1                      own = 4, of which 1 is shared
//   slot      0  1  2  3       4  5  6  7
//   place     s  0  1  2       s  3  4  5
//   turn      0  2  4  6       1  3  5  7
//
// Experts lie at the places of their own numbers, or in any order without copies: then `places` has
// the place of each.

#include <cstdint>

#include "kernels/host_device.h"

namespace orrery::fused_moe {

ORRERY_HOST_DEVICE inline int rank_of_slot(int slot, int own) { return slot / own; }
// Of a routed expert; `places` null: in order.
ORRERY_HOST_DEVICE inline int slot_of_expert(int expert, const std::int32_t* places, int own,
                                             int shared) {
  const int place = places == nullptr ? expert : places[expert];
  const int of_rank = own - shared;
  return place / of_rank * own + shared + place % of_rank;
}
ORRERY_HOST_DEVICE inline bool is_shared_slot(int slot, int own, int shared) {
  return slot % own < shared;
}
// Ranks begin with their first slots at the same time, so results come back by turns: the first
// slot of each rank, the second of each, ...
ORRERY_HOST_DEVICE inline int turn_of_slot(int slot, int own, int ranks) {
  return slot % own * ranks + slot / own;
}

}  // namespace orrery::fused_moe

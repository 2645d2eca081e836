#pragma once

// Ranks that do the same: equal op lists (bodies, times, streams, dependencies among the rank's own
// ops, slowdown) and collectives with equally placed partners. One rank of a class behaves as all
// of them do, so simulating it alone is exact on a symmetric, otherwise idle fabric.
//
// Classes are the coarsest equitable partition: start from equal lists, then split classes whose
// collectives meet different (class, position) sets until nothing splits (colour refinement).

#include <cstdint>
#include <span>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery::des {

// The ranks that a level simulates.
struct RankSet {
  std::vector<int> ranks;   // ascending
  std::vector<int> counts;  // how many ranks of the plan each one stands for
  // Op lists, ascending; ranks with the same ops share one.
  std::vector<std::vector<OpId>> lists;
  std::vector<std::int32_t> list_of;  // by index in `ranks`
  // Rendezvous of a collective op of these ranks (-1: none of them takes part), and how many tasks
  // of the simulated ranks meet in it.
  std::vector<std::int32_t> slot_of_op;
  std::vector<std::int32_t> arrivals;  // by slot
};

// `times[i]` is the duration of op i. `slowdown` is empty or has one factor per rank.
RankSet representatives(const Plan& plan, std::span<const Seconds> times,
                        std::span<const double> slowdown);
// Every rank that has an op, for itself.
RankSet all_ranks(const Plan& plan);

}  // namespace orrery::des

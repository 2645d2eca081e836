#pragma once

// Ranks that come late to layers of experts on purpose, to measure what waiting for them costs. No
// CUDA.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tool/arguments.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery::tool {

// --late US[:US]   by which a rank comes late to each layer, and behind a colon to the exchange
//                  that brings results back
// --who last|all   the last rank, or each, which shows what resting does to clocks
// --jitter NAME    a rank that the seed draws, by the multiples of --late that are published for
//                  exchanges (supercomputer or vm: sim/cost/moe_stragglers.h), one for each layer
struct LateRanks {
  Seconds begin;
  Seconds results;
  bool are_all = false;  // else the last rank, or one that is drawn
  std::string jitter;    // empty: each layer is late by as much
  [[nodiscard]] bool are_late() const { return begin > Seconds(0) || results > Seconds(0); }
};

// The options above, read into `late`, which must outlive them.
std::vector<Option> late_options(LateRanks& late);
// Throws std::invalid_argument where they contradict each other, for `num_layers` prepared layers
// on `ranks` ranks.
void check_late(const LateRanks& late, std::size_t num_layers, int ranks);

struct LayerDelays {
  // How long the stream of an op stands still before it, by rank and name.
  std::map<std::pair<int, std::string>, Seconds> before;
  // Means over the layers.
  Seconds at_begin;
  Seconds at_results;
};

// Of `count` layers in a row: before the first op that a rank has in each, and before the
// communication that it has last, which brings results back. With a jitter the layers have its
// delays at as many quantiles, in an order drawn from the seed. Throws std::invalid_argument where
// results are late but do not travel by an op of their own.
LayerDelays layer_delays(const LateRanks& late, const Plan& chain, int count, std::uint64_t seed);

// For environment.txt: "50:20 us, last rank".
std::string to_text(const LateRanks& late);

}  // namespace orrery::tool

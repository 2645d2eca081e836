#pragma once

// Ranks that come late to a layer of experts on purpose, to measure what waiting for them costs.
// No CUDA.

#include <map>
#include <string>
#include <utility>

#include "kernels/tool/moe_cases.h"
#include "sim/plan/plan.h"

namespace orrery::tool {

struct MoeDelays {
  // How long the stream of an op stands still before it, by rank and name.
  std::map<std::pair<int, std::string>, Seconds> before;
  // Means over the layers.
  Seconds at_begin;
  Seconds at_results;
};

// Of `sets` layers one after the other, of which `layer` is one: before the first op that a rank
// has, and before the communication that it has last, which brings results back. With a jitter the
// layers have its delays at as many quantiles, in an order drawn from the seed. Throws
// std::invalid_argument where results are late but do not travel by an op of their own.
MoeDelays layer_delays(const MoeCase& one, const Plan& layer, int sets);

}  // namespace orrery::tool

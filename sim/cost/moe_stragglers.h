#pragma once

// What ranks that come late cost a layer of routed experts: as one kernel, and between exchanges
// that wait for all. Simulated tile by tile (moe_tiles.h) under published delays.

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/cost/moe_tiles.h"

namespace orrery {

// Steps of all-to-alls, each the longest time of a rank over the fastest's.
struct MoeJitter {
  std::string_view name;
  double median = 1;
  double p95 = 1;
  int num_gpus = 0;
};
// Table 2 of arXiv 2506.04667, of training a GPT-3 with 1.3 billion parameters: 600 steps on a
// supercomputer of 8 x 4 A100, 1,750 on a virtual machine of 8 V100.
inline constexpr std::array kPublishedJitter = {
    MoeJitter{.name = "supercomputer", .median = 1.09, .p95 = 1.32, .num_gpus = 32},
    MoeJitter{.name = "vm", .median = 3.1, .p95 = 11.4, .num_gpus = 8}};
// Throws std::invalid_argument, naming those that there are.
MoeJitter published_jitter(std::string_view name);

// By how much the last of so many ranks is late at `quantile` of all steps, over the time of the
// exchange. Assumed, as two figures leave it open: the delay of the last of num_gpus is log-normal,
// and ranks are late independently, so that of n it is at q where that of num_gpus is at
// q^(num_gpus / n). Throws std::invalid_argument unless 0 < quantile < 1, ranks >= 1, num_gpus >= 1
// and 1 < median <= p95.
double last_rank_delay(const MoeJitter& jitter, std::int64_t ranks, double quantile);

struct MoeStragglers {
  struct Time {
    Seconds on_time;
    Seconds median;
    Seconds p95;
  };
  Time kernel;   // late once: it is one launch
  Time stalled;  // and once more, standing still in the middle of its tasks
  Time bulk;     // late at each of two exchanges
};
// Delays are drawn for each exchange, those of the two independent, as multiples of its own time
// (moe_exchange_times). On a grid of quantiles, so deterministic. Throws std::invalid_argument for
// fewer than two ranks or several hosts, and as simulate_moe_tiles and last_rank_delay do;
// options.delays are not taken.
MoeStragglers simulate_moe_stragglers(const FusedMoeShape& shape, const MoeTileTimes& times,
                                      const MoeJitter& jitter, MoeTileOptions options = {});

}  // namespace orrery

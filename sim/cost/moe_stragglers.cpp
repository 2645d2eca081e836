#include "sim/cost/moe_stragglers.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/units/inverse_normal.h"

namespace orrery {
namespace {

constexpr int kQuantiles = 100;  // of each exchange

// At the middle of each hundredth of all steps.
std::vector<Seconds> delays_of(const MoeJitter& jitter, std::int64_t ranks, Seconds exchange) {
  std::vector<Seconds> delays;
  delays.reserve(kQuantiles);
  for (int i = 0; i < kQuantiles; ++i) {
    delays.push_back(last_rank_delay(jitter, ranks, (i + 0.5) / kQuantiles) * exchange);
  }
  return delays;
}

// Of the sums of each of one with each of the other.
MoeStragglers::Time added(Seconds on_time, const std::vector<Seconds>& first,
                          const std::vector<Seconds>& second) {
  std::vector<Seconds> sums;
  for (const Seconds one : first) {
    for (const Seconds other : second) sums.push_back(on_time + one + other);
  }
  std::ranges::sort(sums);
  const auto at = [&](double share) {
    return sums[static_cast<std::size_t>(share * static_cast<double>(sums.size()))];
  };
  return {.on_time = on_time, .median = at(0.5), .p95 = at(0.95)};
}

}  // namespace

MoeJitter published_jitter(std::string_view name) {
  const auto* const found = std::ranges::find(kPublishedJitter, name, &MoeJitter::name);
  if (found != kPublishedJitter.end()) return *found;
  throw std::invalid_argument("jitter is \"" + std::string(name) +
                              "\", expected supercomputer or vm");
}

double last_rank_delay(const MoeJitter& jitter, std::int64_t ranks, double quantile) {
  if (!(quantile > 0 && quantile < 1) || ranks < 1) {
    throw std::invalid_argument("delay of the last of " + std::to_string(ranks) +
                                " ranks at quantile " + std::to_string(quantile) +
                                ", expected at least one and more than 0 and less than 1");
  }
  if (!(jitter.median > 1 && jitter.p95 >= jitter.median) || jitter.num_gpus < 1) {
    throw std::invalid_argument(
        "jitter of " + std::to_string(jitter.num_gpus) + " GPUs, median " +
        std::to_string(jitter.median) + ", p95 " + std::to_string(jitter.p95) +
        "; expected a median of more than 1, p95 of no less, and at least one GPU");
  }
  const double of_published = std::pow(quantile, jitter.num_gpus / static_cast<double>(ranks));
  const double spread = std::log((jitter.p95 - 1) / (jitter.median - 1)) / inverse_normal(0.95);
  constexpr double kLeast = 1e-300;  // of many more GPUs than ranks
  return (jitter.median - 1) * std::exp(spread * inverse_normal(std::max(of_published, kLeast)));
}

MoeStragglers simulate_moe_stragglers(const FusedMoeShape& shape, const MoeTileTimes& times,
                                      const MoeJitter& jitter, MoeTileOptions options) {
  if (shape.ranks < 2) {
    throw std::invalid_argument("stragglers of " + std::to_string(shape.ranks) +
                                " rank, expected two or more");
  }
  if (options.network.hosts != 1) {
    throw std::invalid_argument("stragglers on " + std::to_string(options.network.hosts) +
                                " hosts, expected one");
  }
  options.delays = {};
  const auto duration = [&](bool is_bulk, Seconds stall) {
    options.is_bulk_synchronous = is_bulk;
    options.delays.stall = {{0, stall}};
    return simulate_moe_tiles(shape, times, options).duration;
  };
  const Seconds kernel = duration(false, Seconds(0));
  const Seconds bulk = duration(true, Seconds(0));
  const MoeExchangeTimes exchanges = moe_exchange_times(shape, times);
  const std::vector<Seconds> first = delays_of(jitter, shape.ranks, exchanges.dispatch);
  const std::vector<Seconds> second = delays_of(jitter, shape.ranks, exchanges.combine);
  std::vector<Seconds> lost;
  lost.reserve(second.size());
  for (const Seconds stall : second) lost.push_back(duration(false, stall) - kernel);
  return {.kernel = added(kernel, first, {Seconds(0)}),
          .stalled = added(kernel, first, lost),
          .bulk = added(bulk, first, second)};
}

}  // namespace orrery

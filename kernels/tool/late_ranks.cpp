#include "kernels/tool/late_ranks.h"

#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <variant>

#include "sim/cost/moe_stragglers.h"

namespace orrery::tool {
namespace {

constexpr std::int64_t kLongestLate = 1000000;  // us

Seconds read_late(const Value& value, std::string_view text) {
  const Value part{.name = value.name, .text = text};
  return Seconds(static_cast<double>(part.whole(0, kLongestLate)) * 1e-6);
}

// In the order of the layers.
std::vector<Seconds> drawn_delays(const LateRanks& late, Seconds exchange, int ranks, int count,
                                  std::mt19937_64& random) {
  std::vector<Seconds> delays(static_cast<std::size_t>(count), exchange);
  if (late.jitter.empty()) return delays;
  const MoeJitter jitter = published_jitter(late.jitter);
  for (int i = 0; i < count; ++i) {
    delays[static_cast<std::size_t>(i)] =
        last_rank_delay(jitter, ranks, (i + 0.5) / count) * exchange;
  }
  for (std::size_t i = delays.size(); i > 1; --i) std::swap(delays[i - 1], delays[random() % i]);
  return delays;
}

std::vector<int> late_ranks(const LateRanks& late, int ranks, std::mt19937_64& random) {
  if (!late.jitter.empty()) {
    return {static_cast<int>(random() % static_cast<std::uint64_t>(ranks))};
  }
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return late.are_all ? all : std::vector<int>{ranks - 1};
}

std::string first_op(const Plan& plan, std::span<const Op> layer, int rank) {
  for (const Op& op : layer) {
    if (plan.contains(op.ranks, rank)) return op.name;
  }
  throw std::invalid_argument("rank " + std::to_string(rank) + " has no op that could be late");
}

std::string results_op(const Plan& plan, std::span<const Op> layer, int rank) {
  std::string name;
  for (const Op& op : layer) {
    if (std::holds_alternative<CommOp>(op.body) && plan.contains(op.ranks, rank)) name = op.name;
  }
  if (!name.empty()) return name;
  throw std::invalid_argument(
      "results are late, but come back within a kernel; expected --late US without a colon");
}

}  // namespace

std::vector<Option> late_options(LateRanks& late) {
  return {{"--late",
           [&](const Value& value) {
             const std::size_t colon = value.text.find(':');
             late.begin = read_late(value, value.text.substr(0, colon));
             if (colon == std::string_view::npos) return;
             late.results = read_late(value, value.text.substr(colon + 1));
           }},
          {"--who",
           [&](const Value& value) {
             if (value.text != "last" && value.text != "all") {
               throw std::invalid_argument("--who is '" + std::string(value.text) +
                                           "', expected last or all");
             }
             late.are_all = value.text == "all";
           }},
          {"--jitter", [&](const Value& value) {
             static_cast<void>(published_jitter(value.text));
             late.jitter = value.text;
           }}};
}

void check_late(const LateRanks& late, std::size_t num_layers, int ranks) {
  if (!late.are_late()) {
    if (late.jitter.empty() && !late.are_all) return;
    throw std::invalid_argument("--jitter and --who need --late, by how much ranks are late");
  }
  if (!late.jitter.empty() && late.are_all) {
    throw std::invalid_argument("--jitter draws a rank; expected it without --who all");
  }
  if (num_layers == 0) {
    throw std::invalid_argument(
        "--late is of layers by themselves; expected a directory with some (validate.layers)");
  }
  if (ranks == 1) {
    throw std::invalid_argument("--late with one rank, which waits for nobody; expected more");
  }
}

LayerDelays layer_delays(const LateRanks& late, const Plan& chain, int count, std::uint64_t seed) {
  LayerDelays delays;
  std::mt19937_64 random(seed);
  const std::span<const Op> ops = chain.ops();
  const std::size_t per_layer = ops.size() / static_cast<std::size_t>(count);
  using OpOf = std::string (*)(const Plan&, std::span<const Op>, int);
  const auto add = [&](Seconds by, OpOf op_of, Seconds& mean) {
    if (by == Seconds(0)) return;
    const int ranks = chain.num_ranks();
    const std::vector<Seconds> of_layers = drawn_delays(late, by, ranks, count, random);
    for (std::size_t i = 0; i < of_layers.size(); ++i) {
      for (const int rank : late_ranks(late, ranks, random)) {
        const std::string op = op_of(chain, ops.subspan(i * per_layer, per_layer), rank);
        delays.before[{rank, op}] += of_layers[i];
      }
      mean += of_layers[i] / count;
    }
  };
  add(late.begin, first_op, delays.at_begin);
  add(late.results, results_op, delays.at_results);
  return delays;
}

std::string to_text(const LateRanks& late) {
  const auto us = [](Seconds time) { return std::to_string(std::llround(time.value() * 1e6)); };
  return us(late.begin) + ":" + us(late.results) + " us, " +
         (late.jitter.empty() ? std::string(late.are_all ? "all ranks" : "last rank")
                              : "times the jitter of a " + late.jitter);
}

}  // namespace orrery::tool

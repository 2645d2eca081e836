#include "kernels/experts/fused_moe/ranks.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "kernels/cuda/devices.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/fused_moe/rank_set.h"
#include "kernels/experts/fused_moe/ranked_layer.h"

namespace orrery {
namespace {

using Report = std::function<void(const FusedMoeReport&)>;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::size_t count_of(std::int64_t size) { return static_cast<std::size_t>(size); }

FusedMoeShape shape_on(const RankSet& set, std::int64_t hidden, std::int64_t ffn,
                       std::int64_t experts, std::int64_t topk,
                       const std::vector<std::int64_t>& tokens) {
  return {.tokens = std::ranges::max(tokens),
          .hidden = hidden,
          .ffn = ffn,
          .experts = experts,
          .topk = topk,
          .normalises = true,
          .ranks = set.size()};
}

std::string named(const FusedMoeShape& shape, const std::vector<std::int64_t>& tokens,
                  const std::string& how) {
  std::string text = "fused_moe tokens";
  for (const std::int64_t count : tokens) text += " " + std::to_string(count);
  return text + " hidden " + std::to_string(shape.hidden) + " ffn " + std::to_string(shape.ffn) +
         " experts " + std::to_string(shape.experts) + " topk " + std::to_string(shape.topk) +
         (shape.shared == 0 ? "" : " shared " + std::to_string(shape.shared)) +
         (shape.capacity_factor == 0 ? "" : " with capacity") +
         (shape.activation == ExpertActivation::kSwiglu ? "" : " plain") +
         (shape.is_fp8 ? " fp8 " : " ") + how;
}

// So many tokens on the ranks in turn.
std::vector<std::int64_t> dealt(const RankSet& set, std::initializer_list<std::int64_t> counts) {
  std::vector<std::int64_t> tokens;
  tokens.reserve(count_of(set.size()));
  for (int rank = 0; rank < set.size(); ++rank) {
    tokens.push_back(counts.begin()[count_of(rank) % counts.size()]);
  }
  return tokens;
}

enum class Routed : std::uint8_t {
  kFreely,
  kToOne,      // all tokens to the last expert
  kByTies,     // of each two experts equal scores
  kNotNumber,  // a token of the last rank with tokens has no numbers
};

struct LayerSizes {
  std::int64_t hidden;
  std::int64_t ffn;
  std::int64_t experts;
  std::int64_t topk;
  std::int64_t shared = 0;
  double capacity_factor = 0;
  bool is_biased = false;
  bool is_dealt = false;  // experts lie on the ranks in turn, the last first
};

// Of `experts` on `ranks`: of 8 on 2 7 5 3 1, 6 4 2 0.
std::vector<std::int32_t> dealt_experts(std::int64_t experts, std::int64_t ranks) {
  std::vector<std::int32_t> expert_of_slot;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t expert = experts - 1 - rank; expert >= 0; expert -= ranks) {
      expert_of_slot.push_back(static_cast<std::int32_t>(expert));
    }
  }
  return expert_of_slot;
}

template <typename T = bf16>
void check_once(const RankSet& set, const LayerSizes& sizes,
                const std::vector<std::int64_t>& tokens, const Report& report,
                ExpertActivation activation = ExpertActivation::kSwiglu, int before = 0,
                Routed routed = Routed::kFreely) {
  FusedMoeShape shape = shape_on(set, sizes.hidden, sizes.ffn, sizes.experts, sizes.topk, tokens);
  shape.activation = activation;
  shape.shared = sizes.shared;
  shape.capacity_factor = sizes.capacity_factor;
  shape.is_fp8 = sizeof(T) == 1;
  RankedLayer<T> layer(
      set, shape, tokens, 1,
      sizes.is_dealt ? dealt_experts(shape.experts, set.size()) : std::vector<std::int32_t>());
  if (sizes.is_biased) layer.bias();
  if (before > 0) {
    layer.fill(7);
    layer.run(before);
    layer.fill(1);
  }
  if (routed == Routed::kToOne) layer.force(shape.experts - 1);
  if (routed == Routed::kByTies) layer.tie();
  if (routed == Routed::kNotNumber) {
    int last = set.size() - 1;
    while (last > 0 && tokens[count_of(last)] == 0) --last;
    layer.spoil(last);
  }
  layer.run();
  constexpr const char* kHow[] = {"eager", "all to the last expert", "experts of equal scores",
                                  "a token without numbers"};
  std::string how = sizes.is_biased ? "with a bias on the logits"
                    : before > 0    ? "behind " + std::to_string(before) + " launches"
                                    : kHow[static_cast<std::size_t>(routed)];
  if (sizes.is_dealt) how += ", experts dealt";
  report({.what = named(shape, tokens, how), .differences = layer.differences(), .faults = {}});
  layer.close();
}

// Weights of a rank that are lost must show in what all ranks get back.
template <typename T>
void check_loss(const RankSet& set, const Report& report) {
  const std::vector<std::int64_t> tokens = dealt(set, {200, 130});
  FusedMoeShape shape = shape_on(set, 256, 128, 16, 4, tokens);
  shape.is_fp8 = sizeof(T) == 1;
  for (int rank = 0; rank < set.size(); ++rank) {
    RankedLayer<T> layer(set, shape, tokens);
    layer.lose_weights(rank);
    layer.run();
    FusedMoeReport result{
        .what = named(shape, tokens, "without weights of rank " + std::to_string(rank))};
    const std::vector<Difference> found = layer.differences();
    for (std::size_t i = 0; i < found.size(); i += RankedLayer<T>::kDifferences) {  // y
      if (found[i].passes()) result.faults.push_back("not noticed in " + found[i].what);
    }
    report(result);
    layer.close();
  }
}

template <typename T>
void check_replays(const RankSet& set, int replays, const Report& report) {
  constexpr int kAlike = 10;  // of one routing
  const std::vector<std::int64_t> tokens = dealt(set, {150, 90, 0});
  FusedMoeShape shape = shape_on(set, 256, 128, 16, 4, tokens);
  shape.is_fp8 = sizeof(T) == 1;
  RankedLayer<T> layer(set, shape, tokens);
  std::vector<std::unique_ptr<cuda::Graph>> graphs(count_of(set.size()));
  set.run([&](int rank) {
    graphs[count_of(rank)] = std::make_unique<cuda::Graph>(
        cuda::Graph::capture(set.stream(rank), [&] { layer.launch(rank); }));
  });
  FusedMoeReport result{
      .what = named(shape, tokens, std::to_string(replays) + " replays of changing routing")};
  for (int i = kAlike; i <= replays; i += kAlike) {
    layer.fill(static_cast<std::uint64_t>(i));
    set.run([&](int rank) {
      for (int k = 0; k < kAlike; ++k) graphs[count_of(rank)]->launch(set.stream(rank));
    });
    if (i % (replays / 4) != 0) continue;
    set.synchronize();
    for (Difference& found : layer.differences()) {
      found.what += " after " + std::to_string(i);
      result.differences.push_back(std::move(found));
    }
  }
  report(result);
  layer.close();
}

constexpr double kMostWaitSeconds = 3;  // for a rank that does not come, of which kernels wait two

void check_missing_rank(const RankSet& set, const Report& report) {
  const std::vector<std::int64_t> tokens = dealt(set, {100});
  const FusedMoeShape shape = shape_on(set, 256, 128, 16, 2, tokens);
  const RankedLayer<bf16> layer(set, shape, tokens);
  FusedMoeReport result{.what = named(shape, tokens, "with a rank that does not come")};
  const Clock::time_point begin = Clock::now();
  set.run([&](int rank) {
    if (rank + 1 < set.size()) layer.launch(rank);
  });
  set.synchronize();
  const double seconds = seconds_since(begin);
  if (seconds > kMostWaitSeconds) {
    result.faults.push_back("took " + std::to_string(seconds) + " s");
  }
  const std::string expected = "the counts of rank " + std::to_string(set.size() - 1);
  try {
    const cuda::DeviceGuard guard(set.device(0));
    layer.plan().require_finished(set.stream(0), 0);
    result.faults.emplace_back("nobody said so");
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()).find(expected) == std::string::npos) {
      result.faults.push_back(std::string("said ") + error.what());
    }
  }
  report(result);
}

template <typename T>
Measurement time_layers(std::span<const int> devices, const FusedMoeShape& shape) {
  constexpr int kRuns = 21;
  constexpr int kLayers = 8;
  const RankSet set(devices);
  const int sets = RankedLayer<T>::cold_sets(shape);
  const RankedLayer<T> layer(set, shape, std::vector(count_of(set.size()), shape.tokens), sets);
  std::vector<std::unique_ptr<cuda::Graph>> graphs(count_of(set.size()));
  set.run([&](int rank) {
    graphs[count_of(rank)] =
        std::make_unique<cuda::Graph>(cuda::Graph::capture(set.stream(rank), [&] {
          for (int i = 0; i < kLayers; ++i) layer.launch(rank, i % sets);
        }));
  });
  std::vector<double> times;
  for (int run = -2; run < kRuns; ++run) {
    std::vector<double> of_ranks(count_of(set.size()));
    set.run([&](int rank) {
      const cuda::Event start;
      const cuda::Event end;
      start.record(set.stream(rank));
      graphs[count_of(rank)]->launch(set.stream(rank));
      end.record(set.stream(rank));
      end.synchronize();
      of_ranks[count_of(rank)] = (end - start).value() / kLayers;
    });
    // The rank that began last has waited for nobody.
    if (run >= 0) times.push_back(std::ranges::min(of_ranks));
  }
  for (const int rank : set.here()) {
    const cuda::DeviceGuard guard(set.device(rank));
    layer.plan().require_finished(set.stream(rank), rank);
  }
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  return {.median = Seconds(median),
          .spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / median,
          .samples = kRuns};
}

// What ranks of one process and processes go through alike.
void check_cases(const RankSet& set, int replays, const Report& report) {
  const auto n = static_cast<std::int64_t>(set.size());
  check_once(set, {64, 64, n, 1}, dealt(set, {1}), report);
  check_once(set, {256, 128, 8 * n, 2}, dealt(set, {300, 300}), report);
  check_once(set, {256, 128, 8 * n, 2}, dealt(set, {300, 0}), report);
  check_once(set, {256, 128, 8 * n, 2}, dealt(set, {0, 1}), report);
  check_once(set, {264, 200, 5 * n, 3}, dealt(set, {7, 333, 64}), report);
  check_once(set, {512, 256, 64 * n, 8}, dealt(set, {150, 40}), report);
  check_once(set, {256, 264, 8 * n, 2}, dealt(set, {700, 650}), report, ExpertActivation::kGelu);
  check_once(set, {256, 384, 4 * n, 2}, dealt(set, {2000, 1999}), report, ExpertActivation::kRelu);
  check_once(set, {256, 128, 8 * n, 2}, dealt(set, {500, 20}), report, ExpertActivation::kSwiglu, 0,
             Routed::kToOne);
  check_once(set, {256, 128, 8 * n, 2}, dealt(set, {300, 200}), report, ExpertActivation::kSwiglu,
             1);
  check_once(set, {256, 128, 8 * n, 2}, dealt(set, {300, 200}), report, ExpertActivation::kSwiglu,
             50);
  check_once(set, {256, 128, 8 * n, 2, 1}, dealt(set, {300, 40}), report);
  check_once(set, {256, 72, 4 * n, 4, 3}, dealt(set, {0, 200}), report, ExpertActivation::kGelu, 2);
  check_once(set, {256, 128, 8 * n, 2, 0, 1.0}, dealt(set, {300, 200}), report);
  check_once(set, {256, 128, 8 * n, 2, 1, 0.5}, dealt(set, {500, 20}), report,
             ExpertActivation::kSwiglu, 0, Routed::kToOne);
  check_once(set, {256, 128, 512, 8}, dealt(set, {150, 40}), report);
  const LayerSizes biased{.hidden = 1024,
                          .ffn = 128,
                          .experts = 8 * n,
                          .topk = 2,
                          .capacity_factor = 1,
                          .is_biased = true};
  check_once(set, biased, dealt(set, {300, 40}), report);
  check_once<fp8>(set, biased, dealt(set, {40, 300}), report);
  LayerSizes ordered = biased;
  ordered.is_dealt = true;
  ordered.shared = 1;
  check_once(set, ordered, dealt(set, {300, 40}), report);
  check_once<fp8>(set, ordered, dealt(set, {40, 300}), report);
  ordered = {.hidden = 256, .ffn = 128, .experts = 8 * n, .topk = 3, .is_dealt = true};
  check_once(set, ordered, dealt(set, {130, 60}), report, ExpertActivation::kSwiglu, 0,
             Routed::kByTies);
  check_once(set, ordered, dealt(set, {500, 20}), report, ExpertActivation::kSwiglu, 0,
             Routed::kToOne);
  check_once<fp8>(set, {256, 128, 8 * n, 2, 1}, dealt(set, {300, 40}), report);
  check_once<fp8>(set, {256, 128, 8 * n, 2, 2, 0.75}, dealt(set, {300, 40}), report);
  check_once<fp8>(set, {64, 64, n, 1}, dealt(set, {1}), report);
  check_once<fp8>(set, {256, 128, 8 * n, 2}, dealt(set, {300, 0}), report);
  check_once<fp8>(set, {2192, 1296, 5 * n, 3}, dealt(set, {7, 333, 64}), report);
  check_once<fp8>(set, {512, 256, 64 * n, 8}, dealt(set, {150, 40}), report);
  check_once<fp8>(set, {256, 272, 8 * n, 2}, dealt(set, {700, 650}), report,
                  ExpertActivation::kGelu);
  check_once<fp8>(set, {256, 128, 8 * n, 2}, dealt(set, {500, 20}), report,
                  ExpertActivation::kSwiglu, 0, Routed::kToOne);
  check_once<fp8>(set, {256, 128, 8 * n, 2}, dealt(set, {300, 200}), report,
                  ExpertActivation::kSwiglu, 50);
  check_once(set, {256, 128, 8 * n, 3}, dealt(set, {130, 60}), report, ExpertActivation::kSwiglu, 0,
             Routed::kByTies);
  check_once<fp8>(set, {256, 128, 8 * n, 3, 1}, dealt(set, {60, 130}), report,
                  ExpertActivation::kSwiglu, 0, Routed::kByTies);
  check_once(set, {256, 128, 8 * n, 2}, dealt(set, {130, 60}), report, ExpertActivation::kSwiglu, 0,
             Routed::kNotNumber);
  check_once(set, {256, 128, 8 * n, 2, 1, 1.0}, dealt(set, {60, 0}), report,
             ExpertActivation::kSwiglu, 0, Routed::kNotNumber);
  check_once<fp8>(set, {256, 128, 8 * n, 2}, dealt(set, {60, 130}), report,
                  ExpertActivation::kSwiglu, 0, Routed::kNotNumber);
  check_loss<bf16>(set, report);
  check_loss<fp8>(set, report);
  check_replays<bf16>(set, replays, report);
  check_replays<fp8>(set, replays, report);
}

}  // namespace

bool FusedMoeReport::passes() const {
  return faults.empty() && std::ranges::all_of(differences, &Difference::passes);
}

void check_fused_moe_ranks(std::span<const int> devices, const Report& report) {
  constexpr int kReplays = 1000;
  const RankSet set(devices);
  check_cases(set, kReplays, report);
  check_missing_rank(set, report);
}

void check_small_fused_moe_ranks(std::span<const int> devices, const Report& report) {
  // Code is loaded, and looked at, before ranks wait for each other.
  for (const int device : devices) {
    const RankSet alone(std::span(&device, 1));
    check_once(alone, {64, 64, 4, 2}, {5}, report);
    check_once<fp8>(alone, {64, 64, 4, 2}, {5}, report);
  }
  const RankSet set(devices);
  const auto n = static_cast<std::int64_t>(set.size());
  check_once(set, {64, 64, n, 1}, dealt(set, {1}), report);
  check_once(set, {128, 72, 4 * n, 2}, dealt(set, {40, 0}), report);
  check_once(set, {72, 40, 5 * n, 3, 1}, dealt(set, {7, 33}), report, ExpertActivation::kGelu, 1);
  check_once(set, {64, 64, 4 * n, 2, 0, 1.0}, dealt(set, {40, 20}), report,
             ExpertActivation::kSwiglu, 0, Routed::kToOne);
  check_once<fp8>(set, {128, 80, 4 * n, 2, 1}, dealt(set, {3, 40}), report);
  check_once<fp8>(set, {64, 64, 4 * n, 2}, dealt(set, {20, 20}), report, ExpertActivation::kSwiglu,
                  2);
}

void check_fused_moe_process(const ProcessGroup& processes, int device, const Report& report) {
  constexpr int kReplays = 200;
  check_cases(RankSet(processes, device), kReplays, report);
}

void replay_until_rank_is_lost(const ProcessGroup& processes, int device, bool launches,
                               const std::function<void()>& ready) {
  const RankSet set(processes, device);
  const int rank = processes.rank;
  const std::vector<std::int64_t> tokens = dealt(set, {100, 30});
  const FusedMoeShape shape = shape_on(set, 256, 128, 16, 2, tokens);
  const RankedLayer<bf16> layer(set, shape, tokens);
  layer.run();
  for (const Difference& found : layer.differences()) {
    if (!found.passes()) throw std::runtime_error(found.what + " is wrong before a rank is lost");
  }
  const cuda::DeviceGuard guard(device);
  const cuda::Graph graph = cuda::Graph::capture(set.stream(rank), [&] { layer.launch(rank); });
  processes.barrier();
  ready();
  constexpr double kMostSeconds = 20;  // until somebody is lost
  for (const Clock::time_point first = Clock::now(); seconds_since(first) < kMostSeconds;) {
    if (!launches) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    constexpr int kAtOnce = 10;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < kAtOnce; ++i) graph.launch(set.stream(rank));
    std::string fault;
    try {
      layer.plan().require_finished(set.stream(rank), rank);
    } catch (const std::runtime_error& error) {
      fault = error.what();
    }
    if (fault.empty()) continue;
    if (const double seconds = seconds_since(begin); seconds > kMostWaitSeconds) {
      fault += ", " + std::string(kWaitedTooLong) + " " + std::to_string(seconds) + " s";
    }
    try {
      processes.barrier();
      fault += "; all ranks are there";
    } catch (const std::runtime_error& error) {
      fault += std::string("; ") + error.what();
    }
    throw std::runtime_error(fault);
  }
  throw std::runtime_error("no rank was lost");
}

Measurement time_fused_moe_ranks(std::span<const int> devices, const FusedMoeShape& shape) {
  return shape.is_fp8 ? time_layers<fp8>(devices, shape) : time_layers<bf16>(devices, shape);
}

}  // namespace orrery

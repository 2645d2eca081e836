#include "kernels/experts/fused_moe/ranks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "kernels/cuda/devices.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/fused_moe/reference.h"
#include "kernels/harness/operands.h"

namespace orrery {
namespace {

using Report = std::function<void(const FusedMoeReport&)>;

std::size_t count_of(std::int64_t size) { return static_cast<std::size_t>(size); }

float deviation(std::int64_t columns) { return 1 / std::sqrt(static_cast<float>(columns)); }

// Operands of all ranks in as many sets as asked for, of which each has other weights, of T.
template <typename T>
class Layer {
 public:
  Layer(const cuda::DeviceTeam& team, const FusedMoeShape& shape, std::vector<std::int64_t> tokens,
        int sets = 1)
      : team_(team), shape_(shape), tokens_(std::move(tokens)), plan_(shape, team.devices()) {
    for (int rank = 0; rank < team.size(); ++rank) {
      const cuda::DeviceGuard guard(team.devices()[count_of(rank)]);
      ranks_.push_back(std::make_unique<Rank>(shape, sets));
    }
    fill(/*seed=*/1);
  }

  // Operands of all ranks from `seed` on: of set 0 those that made() gives.
  void fill(std::uint64_t seed) {
    seed_ = seed;
    for (int rank = 0; rank < team_.size(); ++rank) {
      const cuda::DeviceGuard guard(team_.devices()[count_of(rank)]);
      const cuda::Stream& stream = team_.stream(rank);
      Rank& of = *ranks_[count_of(rank)];
      fill_normal(stream, of.x.get(), of.x.size(), x_seed(rank));
      fill_normal(stream, of.router.get(), of.router.size(), seed_, deviation(shape_.hidden));
      const std::size_t sets = of.w1.size() / w1_size() / count_of(own_experts(shape_));
      for (std::size_t i = 0; i < sets * count_of(own_experts(shape_)); ++i) {
        const std::uint64_t expert = i + count_of(rank * own_experts(shape_));
        fill_normal(stream, of.w1.get() + i * w1_size(), w1_size(), w1_seed(expert),
                    w1_deviation());
        fill_normal(stream, of.w2.get() + i * w2_size(), w2_size(), w2_seed(expert),
                    w2_deviation());
        if (!kIsFp8) continue;
        fill_scales(stream, of.w1_scale.get() + i * w1_rows(), w1_rows(), shape_.hidden, expert);
        fill_scales(stream, of.w2_scale.get() + i * w2_rows(), w2_rows(), shape_.ffn, expert);
      }
      fill_shared(stream, of);
      poison(stream, of.y);
      stream.synchronize();
    }
  }
  // All tokens choose this expert first.
  void force(std::int64_t expert) {
    constexpr float kForced = 200;
    forced_ = expert;
    for (int rank = 0; rank < team_.size(); ++rank) {
      const cuda::DeviceGuard guard(team_.devices()[count_of(rank)]);
      Rank& of = *ranks_[count_of(rank)];
      const std::vector<bf16> ones(count_of(shape_.tokens), bf16(1.0F));
      put_column(of.x.get(), ones);
      std::vector<bf16> biases(count_of(shape_.experts), bf16(0.0F));
      biases[count_of(expert)] = bf16(kForced);
      put_column(of.router.get(), biases);
    }
  }

  // What is added to the logits of all ranks, the same on each.
  void bias() {
    is_biased_ = true;
    for (int rank = 0; rank < team_.size(); ++rank) {
      const cuda::DeviceGuard guard(team_.devices()[count_of(rank)]);
      const cuda::Stream& stream = team_.stream(rank);
      const cuda::DeviceBuffer<bf16>& values = ranks_[count_of(rank)]->logit_bias;
      fill_normal(stream, values.get(), values.size(), kBiasSeed);
      stream.synchronize();
    }
  }

  void launch(int rank, int set = 0) const {
    const Rank& of = *ranks_[count_of(rank)];
    const std::size_t experts = count_of(own_experts(shape_)) * count_of(set);
    plan_.launch(team_.stream(rank),
                 {.x = of.x.get(),
                  .router = of.router.get(),
                  .w1 = of.w1.get() + experts * w1_size(),
                  .w2 = of.w2.get() + experts * w2_size(),
                  .w1_scale = of.w1_scale.get() + (kIsFp8 ? experts * w1_rows() : 0),
                  .w2_scale = of.w2_scale.get() + (kIsFp8 ? experts * w2_rows() : 0),
                  .shared_w1 = of.shared_w1.get(),
                  .shared_w2 = of.shared_w2.get(),
                  .shared_w1_scale = of.shared_w1_scale.get(),
                  .shared_w2_scale = of.shared_w2_scale.get(),
                  .logit_bias = is_biased_ ? of.logit_bias.get() : nullptr,
                  .y = of.y.get(),
                  .scores = of.scores.get(),
                  .faults = of.faults.get()},
                 tokens_[count_of(rank)], rank);
  }
  void run(int launches = 1) const {
    team_.run([&](int rank) {
      for (int i = 0; i < launches; ++i) launch(rank);
    });
    team_.synchronize();
  }
  [[nodiscard]] const FusedMoePlan& plan() const { return plan_; }
  [[nodiscard]] const cuda::DeviceTeam& team() const { return team_; }

  // Scores against the reference, y against what these scores choose.
  [[nodiscard]] std::vector<Difference> differences() const {
    constexpr double kScoreBound = 1e-4;
    const double bound = kIsFp8 ? kFp8Bound : kBf16Bound * std::sqrt(3.0);
    std::vector<double> w1;
    std::vector<double> w2;
    for (std::uint64_t expert = 0; expert < count_of(shape_.experts); ++expert) {
      append(w1,
             weights(w1_size(), w1_seed(expert), w1_deviation(), w1_rows(), shape_.hidden, expert));
      append(w2,
             weights(w2_size(), w2_seed(expert), w2_deviation(), w2_rows(), shape_.ffn, expert));
    }
    const auto shared = count_of(shape_.shared);
    std::vector<double> shared_w1;
    std::vector<double> shared_w2;
    if (shared > 0) {
      shared_w1 = weights(shared * w1_size(), kSharedSeed, w1_deviation(), shared * w1_rows(),
                          shape_.hidden, kSharedSeed);
      shared_w2 = weights(shared * w2_size(), kSharedSeed + 1, w2_deviation(), w2_rows(),
                          shape_.shared * shape_.ffn, kSharedSeed + 1);
    }
    std::vector<Difference> result;
    for (int rank = 0; rank < team_.size(); ++rank) {
      const cuda::DeviceGuard guard(team_.devices()[count_of(rank)]);
      const cuda::Stream& stream = team_.stream(rank);
      plan_.require_finished(stream, rank);
      const Rank& of = *ranks_[count_of(rank)];
      FusedMoeShape shape = shape_;
      shape.ranks = 1;
      shape.tokens = tokens_[count_of(rank)];
      if (shape.tokens == 0) continue;
      const auto x = host_double(stream, of.x.get(), count_of(shape.tokens * shape.hidden));
      const auto router = host_double(stream, of.router.get(), of.router.size());
      const auto scores =
          host_double(stream, of.scores.get(), count_of(shape.tokens * shape.experts));
      const auto bias = is_biased_ ? host_double(stream, of.logit_bias.get(), of.logit_bias.size())
                                   : std::vector<double>();
      const reference::FusedMoe expected =
          reference::fused_moe(x, router, w1, w2, shape, scores, {}, shared_w1, shared_w2, bias);
      const std::string name = "rank " + std::to_string(rank);
      result.push_back(difference(name + " y", host_double(stream, of.y.get(), expected.y.size()),
                                  expected.y, bound));
      result.push_back(difference(name + " scores", scores, expected.scores, kScoreBound));
    }
    return result;
  }
  // Loses `what` of a rank.
  void lose_weights(int rank) const {
    const cuda::DeviceGuard guard(team_.devices()[count_of(rank)]);
    const Rank& of = *ranks_[count_of(rank)];
    ORRERY_CUDA(cudaMemset(of.w2.get(), 0, of.w2.size() * sizeof(T)));
  }

 private:
  struct Rank {
    Rank(const FusedMoeShape& shape, int sets)
        : x(count_of(shape.tokens * shape.hidden)),
          router(count_of(shape.experts * shape.hidden)),
          w1(count_of(sets * own_experts(shape) * first_layer_rows(shape) * shape.hidden)),
          w2(count_of(sets * own_experts(shape) * shape.hidden * shape.ffn)),
          w1_scale(kIsFp8 ? count_of(sets * own_experts(shape) * first_layer_rows(shape)) : 4),
          w2_scale(kIsFp8 ? count_of(sets * own_experts(shape) * shape.hidden) : 4),
          shared_w1(count_of(shape.shared * first_layer_rows(shape) * shape.hidden + kRoom)),
          shared_w2(count_of(shape.shared * shape.hidden * shape.ffn + kRoom)),
          shared_w1_scale(count_of(shape.shared * first_layer_rows(shape) + kRoom)),
          shared_w2_scale(count_of(shape.hidden + kRoom)),
          logit_bias(count_of(shape.experts)),
          y(count_of(shape.tokens * shape.hidden)),
          scores(count_of(shape.tokens * shape.experts)),
          faults(4) {}
    cuda::DeviceBuffer<bf16> x;
    cuda::DeviceBuffer<bf16> router;
    cuda::DeviceBuffer<T> w1;
    cuda::DeviceBuffer<T> w2;
    cuda::DeviceBuffer<float> w1_scale;
    cuda::DeviceBuffer<float> w2_scale;
    cuda::DeviceBuffer<T> shared_w1;
    cuda::DeviceBuffer<T> shared_w2;
    cuda::DeviceBuffer<float> shared_w1_scale;
    cuda::DeviceBuffer<float> shared_w2_scale;
    cuda::DeviceBuffer<bf16> logit_bias;
    cuda::DeviceBuffer<bf16> y;
    cuda::DeviceBuffer<float> scores;
    cuda::DeviceBuffer<std::int32_t> faults;
  };
  static constexpr bool kIsFp8 = sizeof(T) == 1;
  static constexpr std::int64_t kRoom = 16;  // so that none is empty
  static constexpr std::uint64_t kSharedSeed = 5'000'000;
  static constexpr std::uint64_t kBiasSeed = 6'000'000;

  // The same on each rank, whatever the seed.
  void fill_shared(const cuda::Stream& stream, const Rank& of) const {
    if (shape_.shared == 0) return;
    const auto shared = count_of(shape_.shared);
    fill_normal(stream, of.shared_w1.get(), shared * w1_size(), kSharedSeed, w1_deviation());
    fill_normal(stream, of.shared_w2.get(), shared * w2_size(), kSharedSeed + 1, w2_deviation());
    fill_scales(stream, of.shared_w1_scale.get(), shared * w1_rows(), shape_.hidden, kSharedSeed);
    fill_scales(stream, of.shared_w2_scale.get(), w2_rows(), shape_.shared * shape_.ffn,
                kSharedSeed + 1);
  }
  // Of an expert.
  [[nodiscard]] std::size_t w1_rows() const { return count_of(first_layer_rows(shape_)); }
  [[nodiscard]] std::size_t w2_rows() const { return count_of(shape_.hidden); }
  [[nodiscard]] std::size_t w1_size() const { return w1_rows() * count_of(shape_.hidden); }
  // Fp8 has its deviation in its scales.
  [[nodiscard]] float w1_deviation() const { return kIsFp8 ? 1 : deviation(shape_.hidden); }
  [[nodiscard]] float w2_deviation() const { return kIsFp8 ? 1 : deviation(shape_.ffn); }
  static void fill_scales(const cuda::Stream& stream, float* scales, std::size_t rows,
                          std::int64_t columns, std::uint64_t expert) {
    fill_uniform(stream, scales, rows, 7 + expert, 0.5F * deviation(columns),
                 1.5F * deviation(columns));
  }
  // Of an expert, as fill() leaves them.
  static std::vector<double> weights(std::size_t size, std::uint64_t seed, float deviation_of,
                                     std::size_t rows, std::int64_t columns, std::uint64_t expert) {
    std::vector<double> values = host_normal<T>(size, seed, deviation_of);
    if (!kIsFp8) return values;
    const cuda::Stream stream;
    const cuda::DeviceBuffer<float> buffer(rows);
    fill_scales(stream, buffer.get(), rows, columns, expert);
    const std::vector<double> scales = host_double(stream, buffer.get(), rows);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / count_of(columns)];
    return values;
  }
  [[nodiscard]] std::size_t w2_size() const { return count_of(shape_.hidden * shape_.ffn); }
  [[nodiscard]] std::uint64_t x_seed(int rank) const { return seed_ + 100 + count_of(rank); }
  [[nodiscard]] std::uint64_t w1_seed(std::uint64_t expert) const { return seed_ + 1000 + expert; }
  [[nodiscard]] std::uint64_t w2_seed(std::uint64_t expert) const { return seed_ + 90000 + expert; }
  static void append(std::vector<double>& to, const std::vector<double>& more) {
    to.insert(to.end(), more.begin(), more.end());
  }
  // The first element of each row.
  void put_column(bf16* rows, const std::vector<bf16>& values) const {
    ORRERY_CUDA(cudaMemcpy2D(rows, count_of(shape_.hidden) * sizeof(bf16), values.data(),
                             sizeof(bf16), sizeof(bf16), values.size(), cudaMemcpyHostToDevice));
  }

  const cuda::DeviceTeam& team_;
  FusedMoeShape shape_;
  std::vector<std::int64_t> tokens_;
  FusedMoePlan plan_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::uint64_t seed_ = 1;
  std::int64_t forced_ = -1;
  bool is_biased_ = false;
};

FusedMoeShape shape_on(const cuda::DeviceTeam& team, std::int64_t hidden, std::int64_t ffn,
                       std::int64_t experts, std::int64_t topk,
                       const std::vector<std::int64_t>& tokens) {
  return {.tokens = std::ranges::max(tokens),
          .hidden = hidden,
          .ffn = ffn,
          .experts = experts,
          .topk = topk,
          .normalises = true,
          .ranks = team.size()};
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
std::vector<std::int64_t> dealt(const cuda::DeviceTeam& team,
                                std::initializer_list<std::int64_t> counts) {
  std::vector<std::int64_t> tokens;
  tokens.reserve(count_of(team.size()));
  for (int rank = 0; rank < team.size(); ++rank) {
    tokens.push_back(counts.begin()[count_of(rank) % counts.size()]);
  }
  return tokens;
}

struct LayerSizes {
  std::int64_t hidden;
  std::int64_t ffn;
  std::int64_t experts;
  std::int64_t topk;
  std::int64_t shared = 0;
  double capacity_factor = 0;
  bool is_biased = false;
};

template <typename T = bf16>
void check_once(const cuda::DeviceTeam& team, const LayerSizes& sizes,
                const std::vector<std::int64_t>& tokens, const Report& report,
                ExpertActivation activation = ExpertActivation::kSwiglu, int before = 0,
                bool forces = false) {
  FusedMoeShape shape = shape_on(team, sizes.hidden, sizes.ffn, sizes.experts, sizes.topk, tokens);
  shape.activation = activation;
  shape.shared = sizes.shared;
  shape.capacity_factor = sizes.capacity_factor;
  shape.is_fp8 = sizeof(T) == 1;
  Layer<T> layer(team, shape, tokens);
  if (sizes.is_biased) layer.bias();
  if (before > 0) {
    layer.fill(7);
    layer.run(before);
    layer.fill(1);
  }
  if (forces) layer.force(shape.experts - 1);
  layer.run();
  const std::string how = sizes.is_biased ? "with a bias on the logits"
                          : forces        ? "all to the last expert"
                          : before > 0    ? "behind " + std::to_string(before) + " launches"
                                          : "eager";
  report({.what = named(shape, tokens, how), .differences = layer.differences(), .faults = {}});
}

// Weights of a rank that are lost must show in what all ranks get back.
template <typename T>
void check_loss(const cuda::DeviceTeam& team, const Report& report) {
  const std::vector<std::int64_t> tokens = dealt(team, {200, 130});
  FusedMoeShape shape = shape_on(team, 256, 128, 16, 4, tokens);
  shape.is_fp8 = sizeof(T) == 1;
  for (int rank = 0; rank < team.size(); ++rank) {
    Layer<T> layer(team, shape, tokens);
    layer.lose_weights(rank);
    layer.run();
    FusedMoeReport result{
        .what = named(shape, tokens, "without weights of rank " + std::to_string(rank))};
    const std::vector<Difference> found = layer.differences();
    for (std::size_t i = 0; i < found.size(); i += 2) {  // y of each rank
      if (found[i].passes()) result.faults.push_back("not noticed in " + found[i].what);
    }
    report(result);
  }
}

template <typename T>
void check_replays(const cuda::DeviceTeam& team, const Report& report) {
  constexpr int kReplays = 1000;
  const std::vector<std::int64_t> tokens = dealt(team, {150, 90, 0});
  FusedMoeShape shape = shape_on(team, 256, 128, 16, 4, tokens);
  shape.is_fp8 = sizeof(T) == 1;
  Layer<T> layer(team, shape, tokens);
  std::vector<std::unique_ptr<cuda::Graph>> graphs(count_of(team.size()));
  team.run([&](int rank) {
    graphs[count_of(rank)] = std::make_unique<cuda::Graph>(
        cuda::Graph::capture(team.stream(rank), [&] { layer.launch(rank); }));
  });
  FusedMoeReport result{
      .what = named(shape, tokens, std::to_string(kReplays) + " replays of changing routing")};
  for (int i = 1; i <= kReplays; ++i) {
    const bool is_checked = i % 250 == 0;
    if (i % 10 == 0) layer.fill(static_cast<std::uint64_t>(i));
    team.run([&](int rank) { graphs[count_of(rank)]->launch(team.stream(rank)); });
    if (!is_checked) continue;
    team.synchronize();
    for (Difference& found : layer.differences()) {
      found.what += " after " + std::to_string(i);
      result.differences.push_back(std::move(found));
    }
  }
  report(result);
}

void check_missing_rank(const cuda::DeviceTeam& team, const Report& report) {
  const std::vector<std::int64_t> tokens = dealt(team, {100});
  const FusedMoeShape shape = shape_on(team, 256, 128, 16, 2, tokens);
  const Layer<bf16> layer(team, shape, tokens);
  FusedMoeReport result{.what = named(shape, tokens, "with a rank that does not come")};
  const auto begin = std::chrono::steady_clock::now();
  team.run([&](int rank) {
    if (rank + 1 < team.size()) layer.launch(rank);
  });
  team.synchronize();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  constexpr double kMost = 3;
  if (seconds > kMost) result.faults.push_back("took " + std::to_string(seconds) + " s");
  const std::string expected = "the counts of rank " + std::to_string(team.size() - 1);
  try {
    const cuda::DeviceGuard guard(team.devices()[0]);
    layer.plan().require_finished(team.stream(0), 0);
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
  const cuda::DeviceTeam team(devices);
  const double bytes = sizeof(T) * static_cast<double>(own_experts(shape)) *
                       static_cast<double>((first_layer_rows(shape) + shape.ffn) * shape.hidden);
  constexpr double kMostBytes = 20e9;
  const int sets = std::clamp(static_cast<int>(kMostBytes / bytes), 1, 4);
  const Layer<T> layer(team, shape, std::vector(count_of(team.size()), shape.tokens), sets);
  std::vector<std::unique_ptr<cuda::Graph>> graphs(count_of(team.size()));
  team.run([&](int rank) {
    graphs[count_of(rank)] =
        std::make_unique<cuda::Graph>(cuda::Graph::capture(team.stream(rank), [&] {
          for (int i = 0; i < kLayers; ++i) layer.launch(rank, i % sets);
        }));
  });
  std::vector<double> times;
  for (int run = -2; run < kRuns; ++run) {
    std::vector<double> of_ranks(count_of(team.size()));
    team.run([&](int rank) {
      const cuda::Event start;
      const cuda::Event end;
      start.record(team.stream(rank));
      graphs[count_of(rank)]->launch(team.stream(rank));
      end.record(team.stream(rank));
      end.synchronize();
      of_ranks[count_of(rank)] = (end - start).value() / kLayers;
    });
    // The rank that began last has waited for nobody.
    if (run >= 0) times.push_back(std::ranges::min(of_ranks));
  }
  for (int rank = 0; rank < team.size(); ++rank) {
    const cuda::DeviceGuard guard(team.devices()[count_of(rank)]);
    layer.plan().require_finished(team.stream(rank), rank);
  }
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  return {.median = Seconds(median),
          .spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / median,
          .samples = kRuns};
}

}  // namespace

bool FusedMoeReport::passes() const {
  return faults.empty() && std::ranges::all_of(differences, &Difference::passes);
}

void check_fused_moe_ranks(std::span<const int> devices, const Report& report) {
  const cuda::DeviceTeam team(devices, /*may_share=*/true);
  const auto n = static_cast<std::int64_t>(team.size());
  check_once(team, {64, 64, n, 1}, dealt(team, {1}), report);
  check_once(team, {256, 128, 8 * n, 2}, dealt(team, {300, 300}), report);
  check_once(team, {256, 128, 8 * n, 2}, dealt(team, {300, 0}), report);
  check_once(team, {256, 128, 8 * n, 2}, dealt(team, {0, 1}), report);
  check_once(team, {264, 200, 5 * n, 3}, dealt(team, {7, 333, 64}), report);
  check_once(team, {512, 256, 64 * n, 8}, dealt(team, {150, 40}), report);
  check_once(team, {256, 264, 8 * n, 2}, dealt(team, {700, 650}), report, ExpertActivation::kGelu);
  check_once(team, {256, 384, 4 * n, 2}, dealt(team, {2000, 1999}), report,
             ExpertActivation::kRelu);
  check_once(team, {256, 128, 8 * n, 2}, dealt(team, {500, 20}), report, ExpertActivation::kSwiglu,
             0, /*forces=*/true);
  check_once(team, {256, 128, 8 * n, 2}, dealt(team, {300, 200}), report, ExpertActivation::kSwiglu,
             1);
  check_once(team, {256, 128, 8 * n, 2}, dealt(team, {300, 200}), report, ExpertActivation::kSwiglu,
             50);
  check_once(team, {256, 128, 8 * n, 2, 1}, dealt(team, {300, 40}), report);
  check_once(team, {256, 72, 4 * n, 4, 3}, dealt(team, {0, 200}), report, ExpertActivation::kGelu,
             2);
  check_once(team, {256, 128, 8 * n, 2, 0, 1.0}, dealt(team, {300, 200}), report);
  check_once(team, {256, 128, 8 * n, 2, 1, 0.5}, dealt(team, {500, 20}), report,
             ExpertActivation::kSwiglu, 0, /*forces=*/true);
  check_once(team, {256, 128, 512, 8}, dealt(team, {150, 40}), report);
  const LayerSizes biased{.hidden = 1024,
                          .ffn = 128,
                          .experts = 8 * n,
                          .topk = 2,
                          .capacity_factor = 1,
                          .is_biased = true};
  check_once(team, biased, dealt(team, {300, 40}), report);
  check_once<fp8>(team, biased, dealt(team, {40, 300}), report);
  check_once<fp8>(team, {256, 128, 8 * n, 2, 1}, dealt(team, {300, 40}), report);
  check_once<fp8>(team, {256, 128, 8 * n, 2, 2, 0.75}, dealt(team, {300, 40}), report);
  check_once<fp8>(team, {64, 64, n, 1}, dealt(team, {1}), report);
  check_once<fp8>(team, {256, 128, 8 * n, 2}, dealt(team, {300, 0}), report);
  check_once<fp8>(team, {2192, 1296, 5 * n, 3}, dealt(team, {7, 333, 64}), report);
  check_once<fp8>(team, {512, 256, 64 * n, 8}, dealt(team, {150, 40}), report);
  check_once<fp8>(team, {256, 272, 8 * n, 2}, dealt(team, {700, 650}), report,
                  ExpertActivation::kGelu);
  check_once<fp8>(team, {256, 128, 8 * n, 2}, dealt(team, {500, 20}), report,
                  ExpertActivation::kSwiglu, 0, /*forces=*/true);
  check_once<fp8>(team, {256, 128, 8 * n, 2}, dealt(team, {300, 200}), report,
                  ExpertActivation::kSwiglu, 50);
  check_loss<bf16>(team, report);
  check_loss<fp8>(team, report);
  check_replays<bf16>(team, report);
  check_replays<fp8>(team, report);
  check_missing_rank(team, report);
}

Measurement time_fused_moe_ranks(std::span<const int> devices, const FusedMoeShape& shape) {
  return shape.is_fp8 ? time_layers<fp8>(devices, shape) : time_layers<bf16>(devices, shape);
}

}  // namespace orrery

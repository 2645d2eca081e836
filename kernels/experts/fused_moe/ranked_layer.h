#pragma once

// A layer of fused_moe over several ranks with operands of its own, for checks and times.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/device_copy.h"
#include "kernels/cuda/devices.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/fused_moe/rank_set.h"
#include "kernels/experts/fused_moe/reference.h"
#include "kernels/experts/index_shuffling/choice.h"
#include "kernels/harness/difference.h"
#include "kernels/harness/operands.h"

namespace orrery {

// Operands of the ranks here in as many sets as asked for, of which each has other weights, of T,
// with what their layer gives compared with what it should. All processes that have ranks of it
// make the same calls.
template <typename T>
class RankedLayer {
 public:
  // `expert_of_slot`: which experts the ranks hold, of one set alone; empty: in order.
  RankedLayer(const RankSet& set, const FusedMoeShape& shape, std::vector<std::int64_t> tokens,
              int sets = 1, std::vector<std::int32_t> expert_of_slot = {})
      : set_(set),
        shape_(shape),
        tokens_(std::move(tokens)),
        expert_of_slot_(std::move(expert_of_slot)),
        plan_(set.plan(shape)) {
    ranks_.resize(count_of(set.size()));
    for (const int rank : set.here()) {
      const cuda::DeviceGuard guard(set.device(rank));
      ranks_[count_of(rank)] = std::make_unique<Rank>(shape, sets);
      if (expert_of_slot_.empty()) continue;
      ranks_[count_of(rank)]->places =
          device_copy<std::int32_t>(expert_slots(expert_of_slot_, shape.experts).slots);
    }
    fill(/*seed=*/1);
  }
  // Gives back the memory that processes share, once they all have come to it.
  void close() { set_.close(plan_); }

  // Operands from `seed` on.
  void fill(std::uint64_t seed) {
    seed_ = seed;
    for (const int rank : set_.here()) {
      const cuda::DeviceGuard guard(set_.device(rank));
      const cuda::Stream& stream = set_.stream(rank);
      Rank& of = *ranks_[count_of(rank)];
      fill_normal(stream, of.x.get(), of.x.size(), x_seed(rank));
      fill_normal(stream, of.router.get(), of.router.size(), seed_, deviation_of(shape_.hidden));
      const std::size_t sets = of.w1.size() / w1_size() / count_of(own_experts(shape_));
      for (std::size_t i = 0; i < sets * count_of(own_experts(shape_)); ++i) {
        const std::uint64_t expert = expert_at(i + count_of(rank * own_experts(shape_)));
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
    for (const int rank : set_.here()) {
      const cuda::DeviceGuard guard(set_.device(rank));
      Rank& of = *ranks_[count_of(rank)];
      const std::vector<bf16> ones(count_of(shape_.tokens), bf16(1.0F));
      put_column(of.x.get(), ones);
      std::vector<bf16> biases(count_of(shape_.experts), bf16(0.0F));
      biases[count_of(expert)] = bf16(kForced);
      put_column(of.router.get(), biases);
    }
  }

  // Of each two experts scores are equal, so that the lower one is chosen first.
  void tie() {
    const auto row = count_of(shape_.hidden);
    for (const int rank : set_.here()) {
      const cuda::DeviceGuard guard(set_.device(rank));
      bf16* const router = ranks_[count_of(rank)]->router.get();
      for (std::size_t expert = 0; expert + 1 < count_of(shape_.experts); expert += 2) {
        ORRERY_CUDA(cudaMemcpy(router + (expert + 1) * row, router + expert * row,
                               row * sizeof(bf16), cudaMemcpyDeviceToDevice));
      }
    }
  }

  // A token of `rank`, where that is here and has some, has an x that is not a number.
  void spoil(int rank) {
    if (ranks_[count_of(rank)] == nullptr || tokens_[count_of(rank)] == 0) return;
    const cuda::DeviceGuard guard(set_.device(rank));
    const std::int64_t at = tokens_[count_of(rank)] / 2 * shape_.hidden + shape_.hidden - 1;
    ORRERY_CUDA(cudaMemset(ranks_[count_of(rank)]->x.get() + at, 0xFF, sizeof(bf16)));
  }

  // What is added to the logits of all ranks, the same on each.
  void bias() {
    is_biased_ = true;
    for (const int rank : set_.here()) {
      const cuda::DeviceGuard guard(set_.device(rank));
      const cuda::Stream& stream = set_.stream(rank);
      const cuda::DeviceBuffer<bf16>& values = ranks_[count_of(rank)]->logit_bias;
      fill_normal(stream, values.get(), values.size(), kBiasSeed);
      stream.synchronize();
    }
  }

  // With `trace` the kernel that writes one.
  void launch(int rank, int set = 0, const FusedMoeTraceMemory* trace = nullptr) const {
    const Rank& of = *ranks_[count_of(rank)];
    const std::size_t experts = count_of(own_experts(shape_)) * count_of(set);
    const FusedMoeOperands operands{
        .x = of.x.get(),
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
        .places = expert_of_slot_.empty() ? nullptr : of.places.get(),
        .y = of.y.get(),
        .scores = of.scores.get(),
        .faults = of.faults.get()};
    if (trace == nullptr) {
      plan_.launch(set_.stream(rank), operands, tokens_[count_of(rank)], rank);
    } else {
      plan_.launch_traced(set_.stream(rank), operands, tokens_[count_of(rank)], rank, *trace);
    }
  }
  // So many that no launch finds its weights in the L2 cache, where memory has room for them.
  static int cold_sets(const FusedMoeShape& shape) {
    const double bytes = sizeof(T) * static_cast<double>(own_experts(shape)) *
                         static_cast<double>((first_layer_rows(shape) + shape.ffn) * shape.hidden);
    constexpr double kMostBytes = 20e9;
    return std::clamp(static_cast<int>(kMostBytes / bytes), 1, 4);
  }
  void run(int launches = 1) const {
    set_.run([&](int rank) {
      for (int i = 0; i < launches; ++i) launch(rank);
    });
    set_.synchronize();
  }
  [[nodiscard]] const FusedMoePlan& plan() const { return plan_; }

  // Of each rank with tokens so many: y against what the scores choose, these against the
  // reference, and of tokens whose scores are no numbers how many are counted, and have y.
  static constexpr std::size_t kDifferences = 4;
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
    for (const int rank : set_.here()) {
      const cuda::DeviceGuard guard(set_.device(rank));
      const cuda::Stream& stream = set_.stream(rank);
      plan_.require_finished(stream, rank);
      const Rank& of = *ranks_[count_of(rank)];
      FusedMoeShape shape = shape_;
      shape.ranks = 1;
      shape.tokens = tokens_[count_of(rank)];
      if (shape.tokens == 0) continue;
      const auto x = host_double(stream, of.x.get(), count_of(shape.tokens * shape.hidden));
      const auto router = host_double(stream, of.router.get(), of.router.size());
      auto scores = host_double(stream, of.scores.get(), count_of(shape.tokens * shape.experts));
      const auto bias = is_biased_ ? host_double(stream, of.logit_bias.get(), of.logit_bias.size())
                                   : std::vector<double>();
      reference::FusedMoe expected =
          reference::fused_moe(x, router, w1, w2, shape, scores, {}, shared_w1, shared_w2, bias);
      std::vector<double> y = host_double(stream, of.y.get(), expected.y.size());
      const auto not_numbers = leave_out_faulty(expected, y, scores);
      const auto faulty = static_cast<double>(expected.faulty.size());
      const double counted = host_double(stream, of.faults.get(), 1).front();
      const std::string name = "rank " + std::to_string(rank);
      result.push_back(difference(name + " y", y, expected.y, bound));
      result.push_back(difference(name + " scores", scores, expected.scores, kScoreBound));
      result.push_back({.what = name + " faults", .error = std::abs(counted - faulty)});
      result.push_back({.what = name + " faulty tokens with numbers",
                        .error = faulty - static_cast<double>(not_numbers)});
    }
    return result;
  }
  // Of the second layer, where the rank is here.
  void lose_weights(int rank) const {
    if (ranks_[count_of(rank)] == nullptr) return;
    const cuda::DeviceGuard guard(set_.device(rank));
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
          places(count_of(shape.experts)),
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
    cuda::DeviceBuffer<std::int32_t> places;
    cuda::DeviceBuffer<bf16> y;
    cuda::DeviceBuffer<float> scores;
    cuda::DeviceBuffer<std::int32_t> faults;
  };
  static constexpr bool kIsFp8 = sizeof(T) == 1;
  static std::size_t count_of(std::int64_t size) { return static_cast<std::size_t>(size); }
  static float deviation_of(std::int64_t columns) {
    return 1 / std::sqrt(static_cast<float>(columns));
  }
  static constexpr std::int64_t kRoom = 16;  // so that none is empty
  static constexpr std::uint64_t kSharedSeed = 5'000'000;
  static constexpr std::uint64_t kBiasSeed = 6'000'000;

  // Zeros for tokens whose scores are no numbers; how many of these have a y that is none, too.
  std::ptrdiff_t leave_out_faulty(reference::FusedMoe& expected, std::vector<double>& y,
                                  std::vector<double>& scores) const {
    std::ptrdiff_t not_numbers = 0;
    for (const std::int32_t token : expected.faulty) {
      const auto of_token = [&](std::vector<double>& values, std::int64_t columns) {
        return std::span(values).subspan(count_of(token * columns), count_of(columns));
      };
      const auto found = of_token(y, shape_.hidden);
      not_numbers +=
          std::ranges::all_of(found, [](double value) { return std::isnan(value); }) ? 1 : 0;
      std::ranges::fill(found, 0.0);
      std::ranges::fill(of_token(expected.y, shape_.hidden), 0.0);
      std::ranges::fill(of_token(scores, shape_.experts), 0.0);
      std::ranges::fill(of_token(expected.scores, shape_.experts), 0.0);
    }
    return not_numbers;
  }

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
  [[nodiscard]] float w1_deviation() const { return kIsFp8 ? 1 : deviation_of(shape_.hidden); }
  [[nodiscard]] float w2_deviation() const { return kIsFp8 ? 1 : deviation_of(shape_.ffn); }
  static void fill_scales(const cuda::Stream& stream, float* scales, std::size_t rows,
                          std::int64_t columns, std::uint64_t expert) {
    fill_uniform(stream, scales, rows, 7 + expert, 0.5F * deviation_of(columns),
                 1.5F * deviation_of(columns));
  }
  // Of an expert, as fill() leaves them.
  static std::vector<double> weights(std::size_t size, std::uint64_t seed, float deviation,
                                     std::size_t rows, std::int64_t columns, std::uint64_t expert) {
    std::vector<double> values = host_normal<T>(size, seed, deviation);
    if (!kIsFp8) return values;
    const cuda::Stream stream;
    const cuda::DeviceBuffer<float> buffer(rows);
    fill_scales(stream, buffer.get(), rows, columns, expert);
    const std::vector<double> scales = host_double(stream, buffer.get(), rows);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / count_of(columns)];
    return values;
  }
  [[nodiscard]] std::uint64_t expert_at(std::size_t place) const {
    return expert_of_slot_.empty() ? place : static_cast<std::uint64_t>(expert_of_slot_[place]);
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

  const RankSet& set_;
  FusedMoeShape shape_;
  std::vector<std::int64_t> tokens_;
  std::vector<std::int32_t> expert_of_slot_;
  FusedMoePlan plan_;
  std::vector<std::unique_ptr<Rank>> ranks_;  // null for those of other processes
  std::uint64_t seed_ = 1;
  std::int64_t forced_ = -1;
  bool is_biased_ = false;
};

}  // namespace orrery

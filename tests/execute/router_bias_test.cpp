// A load of experts that biases impose on the router: tokens of random weights choose by it.

#include "kernels/execute/router_bias.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/weights.h"
#include "kernels/experts/index_shuffling/reference.h"
#include "sim/model/expert_load_sources.h"

namespace orrery {
namespace {

struct Model {
  std::string name;
  ExpertRouter router;
};
const std::vector<Model> kModels{
    {"Mixtral-8x7B", {.experts = 8, .topk = 2}},
    {"Qwen3-30B-A3B", {.experts = 128, .topk = 8}},
    {"DeepSeek-V2", {.experts = 160, .topk = 6, .groups = 8, .topk_groups = 3}},
    {"DeepSeek-V3",
     {.score = RoutingScore::kSigmoid,
      .experts = 256,
      .topk = 8,
      .groups = 8,
      .topk_groups = 4,
      .group_score = GroupScore::kBestTwo}}};

std::vector<std::int32_t> counts_of(const ExpertRouter& router, std::vector<double> logits,
                                    const std::vector<float>& bias) {
  const auto experts = static_cast<std::size_t>(router.experts);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] += bias.empty() ? 0 : bias[i % experts];
    if (router.score == RoutingScore::kSigmoid) logits[i] = 1 / (1 + std::exp(-logits[i]));
  }
  return reference::index_shuffling(logits, {},
                                    {.tokens = std::ssize(logits) / router.experts,
                                     .experts_total = router.experts,
                                     .topk = router.topk,
                                     .groups = router.groups,
                                     .topk_groups = router.topk_groups,
                                     .group_score = router.group_score,
                                     .experts = router.experts})
      .counts;
}

// Sums of twelve uniform values less six: mean 0, variance 1.
std::vector<double> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> values(count, -6);
  for (double& value : values) {
    for (int i = 0; i < 12; ++i) value += static_cast<double>(random()) * 0x1p-32;
  }
  return values;
}

// The most by which an expert's rows differ from tokens * p, in standard deviations of a draw of
// both: these tokens, and those by which the biases were found (16,384).
double worst_deviation(const std::vector<std::int32_t>& counts, const std::vector<double>& chosen,
                       double tokens) {
  double worst = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const double rows = tokens * chosen[e];
    const double variance = std::max(rows * (1 - chosen[e]), 1.0) * (1 + tokens / 16384);
    worst = std::max(worst, std::abs(counts[e] - rows) / std::sqrt(variance));
  }
  return worst;
}

TEST(RouterBias, TokensChooseByTheLoadWithinTheErrorOfADraw) {
  constexpr std::size_t kDrawn = 4096;
  for (const Model& model : kModels) {
    const ExpertRouter& router = model.router;
    const auto logits = normal_values(kDrawn * static_cast<std::size_t>(router.experts), 3);
    for (const ExpertLoad& load :
         {power_law_load(router.experts, 1.01, 1), zipf_load(router.experts, 0.5, 2)}) {
      const auto chosen = choice_probabilities(load, router.experts, router.topk);
      const auto found = counts_of(router, logits, router_bias(load, router));
      // Of a thousand counts the worst is 3 to 4 deviations off; 5 is one in a million.
      EXPECT_LT(worst_deviation(found, chosen, kDrawn), 5) << model.name;
      EXPECT_GT(worst_deviation(counts_of(router, logits, {}), chosen, kDrawn), 10) << model.name;
    }
  }
}

TEST(RouterBias, TheRouterOfRandomWeightsChoosesByTheLoad) {
  constexpr std::int64_t kWidth = 1024;
  constexpr std::int64_t kDrawn = 1024;
  const ExpertRouter router{.experts = 128, .topk = 8};
  const WeightShard shard{.name = "layers.0.router.weight",
                          .rows = router.experts,
                          .columns = kWidth,
                          .whole_rows = router.experts,
                          .whole_columns = kWidth,
                          .row_ranges = {{.count = router.experts}},
                          .column_ranges = {{.count = kWidth}},
                          .bound = std::sqrt(3.0 / kWidth)};
  const std::vector<float> w = stored_weight(shard, 0, DType::kBf16, 1).values;
  std::vector<double> x = normal_values(kDrawn * kWidth, 5);
  std::vector<double> logits;
  for (std::int64_t token = 0; token < kDrawn; ++token) {
    const double* const row = x.data() + token * kWidth;
    double squares = 0;
    for (std::int64_t i = 0; i < kWidth; ++i) squares += row[i] * row[i];
    for (std::int64_t e = 0; e < router.experts; ++e) {
      double sum = 0;
      for (std::int64_t i = 0; i < kWidth; ++i) {
        sum += row[i] * static_cast<double>(w[static_cast<std::size_t>(e * kWidth + i)]);
      }
      logits.push_back(sum / std::sqrt(squares / kWidth));
    }
  }
  const ExpertLoad load = power_law_load(router.experts, 1.01, 1);
  const auto chosen = choice_probabilities(load, router.experts, router.topk);
  const auto found = counts_of(router, logits, router_bias(load, router));
  // Rows of w differ in length by 2 %, which is 6 % of the rows of an expert chosen by a token in
  // 16: as much again as the error of a draw.
  EXPECT_LT(worst_deviation(found, chosen, kDrawn), 7);
}

TEST(RouterBias, AnEvenLoadNeedsNone) { EXPECT_TRUE(router_bias({}, kModels[0].router).empty()); }

TEST(RouterBias, AnExpertWithoutAShareIsNotChosen) {
  const ExpertRouter router{.experts = 8, .topk = 2};
  const ExpertLoad load{.shares = {0.5, 0.25, 0.25, 0, 0, 0, 0, 0}};
  const auto found = counts_of(router, normal_values(8 * 4096, 1), router_bias(load, router));
  for (std::size_t e = 3; e < 8; ++e) EXPECT_EQ(found[e], 0);
}

TEST(RouterBias, ALoadOfOtherExpertsIsRefused) {
  EXPECT_THROW(router_bias(power_law_load(16, 1.01, 1), kModels[0].router), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

// Ranks that come late to layers of experts on purpose, and the inputs of such layers.

#include "kernels/tool/late_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/execute/layer_inputs.h"
#include "kernels/tool/moe_cases.h"
#include "sim/cost/moe_stragglers.h"
#include "sim/parallel/parallel.h"
#include "sim/plan/chain.h"

namespace orrery::tool {
namespace {

Mesh two_ranks(ExpertComm comm) { return {.dp = 2, .ep = 2, .expert_comm = comm}; }

Plan layer_of(const Mesh& mesh, MoeDesign design = MoeDesign::kShuffling) {
  MoeCase one;
  one.model = "tiny_qwen3";
  one.tokens = 8;
  one.design = design;
  one.mesh = mesh;
  return parallelize(moe_plan(one), mesh);
}

LateRanks parsed(const std::vector<std::string_view>& arguments) {
  LateRanks late;
  static_cast<void>(read_arguments("execute", arguments, late_options(late)));
  return late;
}

TEST(LateRanks, AnOptionSaysByHowMuchAndWho) {
  const LateRanks late = parsed({"--late", "50:20", "--who", "all"});
  EXPECT_DOUBLE_EQ(late.begin.value(), 50e-6);
  EXPECT_DOUBLE_EQ(late.results.value(), 20e-6);
  EXPECT_TRUE(late.are_all && late.are_late());
  EXPECT_EQ(to_text(late), "50:20 us, all ranks");
  EXPECT_EQ(to_text(parsed({"--late", "5", "--jitter", "vm"})), "5:0 us, times the jitter of a vm");
  EXPECT_FALSE(parsed({}).are_late());
  for (const std::string_view wrong : {"-1", "1.5", "50:", "2000000", "x"}) {
    EXPECT_THROW(parsed({"--late", wrong}), std::invalid_argument) << wrong;
  }
  EXPECT_THROW(parsed({"--who", "me"}), std::invalid_argument);
  EXPECT_THROW(parsed({"--jitter", "mars"}), std::invalid_argument);
}

TEST(LateRanks, WithoutLayersOrOthersThatWaitTheyAreRefused) {
  const LateRanks late = parsed({"--late", "50"});
  EXPECT_NO_THROW(check_late(late, 1, 2));
  EXPECT_NO_THROW(check_late(parsed({}), 0, 1));
  EXPECT_THROW(check_late(late, 0, 2), std::invalid_argument);
  EXPECT_THROW(check_late(late, 1, 1), std::invalid_argument);
  EXPECT_THROW(check_late(parsed({"--jitter", "vm"}), 1, 2), std::invalid_argument);
  EXPECT_THROW(check_late(parsed({"--who", "all"}), 1, 2), std::invalid_argument);
  EXPECT_THROW(check_late(parsed({"--late", "5", "--jitter", "vm", "--who", "all"}), 1, 2),
               std::invalid_argument);
}

TEST(LateRanks, StandStillBeforeTheFirstOpAndBeforeResultsComeBack) {
  const LateRanks late = parsed({"--late", "50:20"});
  const Plan chain = chained(layer_of(two_ranks(ExpertComm::kGraph)), 3);
  const LayerDelays delays = layer_delays(late, chain, 3, 1);
  ASSERT_EQ(delays.before.size(), 6U);
  for (int layer = 0; layer < 3; ++layer) {
    const std::string copy = "#" + std::to_string(layer);
    EXPECT_DOUBLE_EQ(delays.before.at({1, "router" + copy}).value(), 50e-6);
    EXPECT_DOUBLE_EQ(delays.before.at({1, "return.all_to_all" + copy}).value(), 20e-6);
  }
  EXPECT_NEAR(delays.at_begin.value(), 50e-6, 1e-15);
  EXPECT_NEAR(delays.at_results.value(), 20e-6, 1e-15);
  // One kernel brings results back by itself.
  const Plan kernel = layer_of(two_ranks(ExpertComm::kAllToAll), MoeDesign::kPersistent);
  EXPECT_THROW(static_cast<void>(layer_delays(late, kernel, 1, 1)), std::invalid_argument);
  EXPECT_NO_THROW(static_cast<void>(layer_delays(parsed({"--late", "5"}), kernel, 1, 1)));
}

TEST(LateRanks, AllAreAlike) {
  const LateRanks late = parsed({"--late", "50", "--who", "all"});
  const LayerDelays delays = layer_delays(late, layer_of(two_ranks(ExpertComm::kGraph)), 1, 1);
  EXPECT_DOUBLE_EQ(delays.before.at({0, "router"}).value(), 50e-6);
  EXPECT_DOUBLE_EQ(delays.before.at({1, "router"}).value(), 50e-6);
  EXPECT_NEAR(delays.at_begin.value(), 50e-6, 1e-15);
}

// A delay of its own in each layer, of one rank: those of the distribution at so many quantiles.
TEST(LateRanks, WithAJitterDelaysAreThoseThatArePublished) {
  constexpr int kLayers = 8;
  const Plan chain = chained(layer_of(two_ranks(ExpertComm::kGraph)), kLayers);
  const LayerDelays delays =
      layer_delays(parsed({"--late", "100", "--jitter", "vm"}), chain, kLayers, 3);
  std::vector<double> found;
  for (const auto& [at, delay] : delays.before) found.push_back(delay.value());
  std::ranges::sort(found);
  ASSERT_EQ(found.size(), static_cast<std::size_t>(kLayers));
  double sum = 0;
  for (int i = 0; i < kLayers; ++i) {
    const double expected =
        last_rank_delay(published_jitter("vm"), 2, (i + 0.5) / kLayers) * 100e-6;
    EXPECT_NEAR(found[static_cast<std::size_t>(i)], expected, 1e-12);
    sum += expected;
  }
  EXPECT_NEAR(delays.at_begin.value(), sum / kLayers, 1e-12);
}

// 8 tokens of 256 columns over two data-parallel ranks: each has 4 of them, whose values are alike
// however they are shared out.
TEST(LayerInputs, EachRankHasItsTokens) {
  const std::vector<float> all = draw_layer_input(8, 256, 1);
  EXPECT_NE(all, draw_layer_input(8, 256, 2));
  const double squares = std::inner_product(all.begin(), all.end(), all.begin(), 0.0);
  EXPECT_NEAR(squares / 2048, 1, 0.1);  // of variance 1
  const Plan chain = chained(layer_of(two_ranks(ExpertComm::kGraph)), 2);
  std::vector<float> found;
  for (const int rank : {0, 1}) {
    const auto inputs = layer_inputs(chain, {.dp = 2}, rank, 8, 1);
    ASSERT_EQ(inputs.size(), 1U);
    found.insert(found.end(), inputs.at("x").begin(), inputs.at("x").end());
  }
  EXPECT_EQ(found, all);
}

// 3 tokens over two ranks of 2 rows: the last row is of no token.
TEST(LayerInputs, RowsThatPadAreZero) {
  MoeCase one;
  one.model = "tiny_qwen3";
  one.tokens = 3;
  one.mesh = two_ranks(ExpertComm::kGraph);
  const auto inputs = layer_inputs(parallelize(moe_plan(one), one.mesh), {.dp = 2}, 1, 3, 1);
  const std::vector<float>& x = inputs.at("x");
  ASSERT_EQ(x.size(), 512U);
  EXPECT_NE(x[0], 0);
  EXPECT_TRUE(std::all_of(x.begin() + 256, x.end(), [](float value) { return value == 0; }));
}

}  // namespace
}  // namespace orrery::tool

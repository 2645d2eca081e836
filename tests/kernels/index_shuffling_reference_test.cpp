// Laws of the reference index_shuffling: what is chosen, and the order of rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/experts/index_shuffling/reference.h"

namespace orrery {
namespace {

using reference::index_shuffling;
using reference::init_routing;

constexpr double kNoScore = std::numeric_limits<double>::quiet_NaN();
using Ids = std::vector<std::int32_t>;

TEST(IndexShufflingReference, RowsAreSortedByExpertThenToken) {
  // Choices, best first: token 0 takes experts 2, 0; token 1 takes 0, 1; token 2 takes 2, 1.
  const std::vector<double> scores{0.3, 0.1, 0.6, 0.5, 0.4, 0.1, 0.1, 0.2, 0.7};
  const auto out =
      index_shuffling(scores, {}, {.tokens = 3, .experts_total = 3, .topk = 2, .experts = 3});
  EXPECT_EQ(out.chosen, (Ids{2, 0, 0, 1, 2, 1}));
  EXPECT_EQ(out.counts, (Ids{2, 2, 2}));
  EXPECT_EQ(out.row_token, (Ids{0, 1, 1, 2, 0, 2}));
  EXPECT_EQ(out.row_weight, (std::vector<double>{0.3, 0.5, 0.4, 0.2, 0.6, 0.7}));
  EXPECT_EQ(out.token_rows, (Ids{4, 0, 1, 2, 5, 3}));
}

// Expert 1 has slots 0 and 3: tokens take one after the other.
TEST(IndexShufflingReference, CopiesOfAnExpertTakeTokensInTurn) {
  const std::vector<std::int32_t> slots{1, 2, 0, 1};
  const std::vector<double> scores{0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0};
  const IndexShufflingShape shape{
      .tokens = 4, .experts_total = 3, .topk = 1, .slots = 4, .experts = 4};
  const auto out = index_shuffling(scores, {}, shape, slots);
  EXPECT_EQ(out.chosen, (Ids{0, 3, 0, 2}));
  EXPECT_EQ(out.counts, (Ids{2, 0, 1, 1}));
  EXPECT_EQ(out.row_token, (Ids{0, 2, 3, 1}));
  EXPECT_THROW(expert_slots(slots, 4), std::invalid_argument);  // expert 3 is nowhere
  EXPECT_THROW(expert_slots(slots, 2), std::invalid_argument);  // a slot holds expert 2
}

TEST(IndexShufflingReference, EachRowBelongsToTheChoiceThatNamesIt) {
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const IndexShufflingShape shape{
      .tokens = 50, .experts_total = 24, .topk = 4, .first_expert = 5, .experts = 9};
  std::vector<double> scores(1200);  // 50 x 24
  for (double& score : scores) score = static_cast<double>(random() % 16);
  const auto out = index_shuffling(scores, {}, shape);
  std::size_t rows = 0;
  for (std::size_t at = 0; at < out.chosen.size(); ++at) {
    const std::int32_t expert = out.chosen[at] - 5;
    const std::int32_t row = out.token_rows[at];
    if (expert < 0 || expert >= 9) {
      EXPECT_EQ(row, -1);
      continue;
    }
    ++rows;
    std::int32_t first = 0;
    for (std::int32_t i = 0; i < expert; ++i) first += out.counts[static_cast<std::size_t>(i)];
    EXPECT_GE(row, first);
    EXPECT_LT(row, first + out.counts[static_cast<std::size_t>(expert)]);
    EXPECT_EQ(out.row_token[static_cast<std::size_t>(row)], static_cast<std::int32_t>(at / 4));
  }
  EXPECT_EQ(rows, out.row_token.size());
}

TEST(IndexShufflingReference, OfEqualScoresTheLowerExpertWins) {
  const std::vector<double> scores{0, 1, -0.0, 1, 1, 0};
  const auto out =
      index_shuffling(scores, {}, {.tokens = 1, .experts_total = 6, .topk = 5, .experts = 6});
  EXPECT_EQ(out.chosen, (Ids{1, 3, 4, 0, 2}));
}

TEST(IndexShufflingReference, ABiasMovesTheChoiceAndNotTheWeight) {
  const std::vector<double> scores{0.5, 0.25, 0.125};
  const std::vector<double> bias{0, 0, 1};
  const auto out =
      index_shuffling(scores, bias, {.tokens = 1, .experts_total = 3, .topk = 2, .experts = 3});
  EXPECT_EQ(out.chosen, (Ids{2, 0}));
  EXPECT_EQ(out.row_weight, (std::vector<double>{0.5, 0.125}));
}

TEST(IndexShufflingReference, NormalisedWeightsSumToTheScale) {
  const std::vector<double> scores{0.5, 0.25, 0.125, 0.0625};
  const auto out = index_shuffling(
      scores, {},
      {.tokens = 1, .experts_total = 4, .topk = 3, .experts = 4, .normalises = true, .scale = 2.5});
  double sum = 0;
  for (const double weight : out.row_weight) sum += weight;
  EXPECT_NEAR(sum, 2.5, 1e-12);
  EXPECT_NEAR(out.row_weight[0] / out.row_weight[1], 2, 1e-12);
}

TEST(IndexShufflingReference, ScoresThatAreAllZeroGiveWeightsOfZero) {
  const auto out = index_shuffling(
      std::vector<double>(4), {},
      {.tokens = 1, .experts_total = 4, .topk = 2, .experts = 4, .normalises = true});
  EXPECT_EQ(out.row_weight, (std::vector<double>{0, 0}));
}

// Four groups of two: best 0.9, 0.7, 0.6, 0.1; sums of two 1.0, 0.9, 1.2, 0.2.
TEST(IndexShufflingReference, GroupsAreJudgedByTheirBestOrByTheirTwoBest) {
  const std::vector<double> scores{0.9, 0.1, 0.2, 0.7, 0.6, 0.6, 0.1, 0.1};
  IndexShufflingShape shape{
      .tokens = 1, .experts_total = 8, .topk = 3, .groups = 4, .topk_groups = 2, .experts = 8};
  EXPECT_EQ(index_shuffling(scores, {}, shape).chosen, (Ids{0, 3, 2}));
  shape.group_score = GroupScore::kBestTwo;
  EXPECT_EQ(index_shuffling(scores, {}, shape).chosen, (Ids{0, 4, 5}));
}

TEST(IndexShufflingReference, ScoresThatAreNotNumbersAreChosenLast) {
  const std::vector<double> scores{kNoScore, -1e30, kNoScore, 0.5};
  const auto out =
      index_shuffling(scores, {}, {.tokens = 1, .experts_total = 4, .topk = 3, .experts = 4});
  EXPECT_EQ(out.chosen, (Ids{3, 1, 0}));
  EXPECT_TRUE(std::isnan(out.row_weight[0]));
  EXPECT_EQ(out.row_weight[2], 0.5);
}

TEST(IndexShufflingReference, ATokenWithoutAnyNumberTakesTheFirstExperts) {
  const auto out = index_shuffling(std::vector<double>(5, kNoScore), {},
                                   {.tokens = 1, .experts_total = 5, .topk = 2, .experts = 5});
  EXPECT_EQ(out.chosen, (Ids{0, 1}));
  EXPECT_TRUE(
      std::ranges::all_of(out.row_weight, [](double weight) { return std::isnan(weight); }));
}

TEST(IndexShufflingReference, AScoreOfMinusInfinityIsOfAnExpertThatIsNotTaken) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const std::vector<double> scores{0.25, 0.5, kNone, kNone, kNone, kNone, kNone, 0.25, kNone};
  const auto out = index_shuffling(
      scores, std::vector<double>{1, 2, 3},
      {.tokens = 3, .experts_total = 3, .topk = 2, .experts = 3, .normalises = true});
  EXPECT_EQ(out.chosen, (Ids{1, 0, -1, -1, 1, -1}));
  EXPECT_EQ(out.counts, (Ids{1, 2, 0}));
  EXPECT_EQ(out.row_token, (Ids{0, 0, 2}));
  EXPECT_EQ(out.token_rows, (Ids{1, 0, -1, -1, 2, -1}));
  EXPECT_NEAR(out.row_weight[0], 1.0 / 3, 1e-15);
  EXPECT_NEAR(out.row_weight[2], 1, 1e-15);  // of the only one
}

TEST(IndexShufflingReference, NoTokensCountAsNone) {
  const auto out =
      index_shuffling({}, {}, {.tokens = 0, .experts_total = 3, .topk = 1, .experts = 3});
  EXPECT_EQ(out.counts, (Ids{0, 0, 0}));
  EXPECT_TRUE(out.row_token.empty());
}

// Of the semantics of expanded rows: tokens 0, 1, 2 with experts [[1, 2], [0, 1], [1, 2]], choices
// numbered column by column. Rows in order of experts: token 1; tokens 0, 1, 2; tokens 0, 2.
TEST(IndexShufflingReference, ExpandsRowsAsInitRoutingDoes) {
  const std::vector<double> scores{0, 2, 1, 2, 1, 0, 0, 2, 1};
  const auto out =
      index_shuffling(scores, {}, {.tokens = 3, .experts_total = 3, .topk = 2, .experts = 3});
  ASSERT_EQ(out.chosen, (Ids{1, 2, 0, 1, 1, 2}));
  const auto routing =
      init_routing(out.token_rows, out.row_token, out.counts, Ids{0, 3, 1, 4, 2, 5});
  const std::vector<double> x{0, 0.1, 0.2};
  std::vector<double> expanded_x;
  expanded_x.reserve(routing.expanded_token.size());
  for (const std::int32_t token : routing.expanded_token)
    expanded_x.push_back(x[static_cast<std::size_t>(token)]);
  EXPECT_EQ(expanded_x, (std::vector<double>{0.1, 0, 0.1, 0.2, 0, 0.2}));
  EXPECT_EQ(routing.expanded_row_idx, (Ids{1, 0, 3, 4, 2, 5}));
  EXPECT_EQ(routing.expanded_expert_idx, (Ids{0, 1, 1, 1, 2, 2}));
}

TEST(IndexShufflingReference, InitRoutingRefusesWhatNumbersAChoiceTwice) {
  EXPECT_THROW(init_routing(Ids{0, 1}, Ids{0, 0}, Ids{1, 1}, Ids{0, 0}), std::invalid_argument);
  EXPECT_THROW(init_routing(Ids{0, -1}, Ids{0, 0}, Ids{1, 1}, Ids{0, 1}), std::invalid_argument);
  EXPECT_THROW(init_routing(Ids{0, 1}, Ids{0, 0}, Ids{1, 0}, Ids{0, 1}), std::invalid_argument);
}

TEST(IndexShufflingReference, RefusesWhatIsOutOfRange) {
  const IndexShufflingShape good{
      .tokens = 1, .experts_total = 16, .topk = 2, .groups = 4, .topk_groups = 2, .experts = 16};
  EXPECT_NO_THROW(require_index_shuffling_shape(good));
  const auto refused = [&](auto&& change) {
    IndexShufflingShape shape = good;
    change(shape);
    EXPECT_THROW(require_index_shuffling_shape(shape), std::invalid_argument);
  };
  refused([](auto& shape) { shape.experts_total = 0; });
  refused([](auto& shape) { shape.experts_total = shape.experts = 516; });
  refused([](auto& shape) { shape.topk = 0; });
  refused([](auto& shape) { shape.topk = 9; });
  refused([](auto& shape) {
    shape.experts_total = shape.experts = shape.groups = shape.topk_groups = 1;
  });
  refused([](auto& shape) { shape.groups = 3; });
  refused([](auto& shape) { shape.topk_groups = 5; });
  refused([](auto& shape) {
    shape.topk = 5;
    shape.topk_groups = 1;
  });
  refused([](auto& shape) { shape.first_expert = 1; });
  refused([](auto& shape) { shape.first_expert = -1; });
  refused([](auto& shape) { shape.experts = 0; });
  refused([](auto& shape) { shape.tokens = -1; });
  refused([](auto& shape) { shape.tokens = std::int64_t{1} << 30; });
}

constexpr std::array<int, 5> kClusters{132, 66, 30, 14, 6};

TEST(IndexShufflingChoice, EveryTokenHasABlockThatHasRoomForIt) {
  constexpr std::size_t kMostBytes = std::size_t{227} * 1024;
  for (const std::int64_t experts : {1, 16, 60, 128, 512}) {
    for (const std::int64_t tokens : {0, 1, 31, 1000, 4096, 16384, 100000}) {
      for (const std::int64_t topk : {1, 8}) {
        if (topk > experts) continue;
        const IndexShufflingShape shape{
            .tokens = tokens, .experts_total = experts, .topk = topk, .experts = experts};
        const IndexShufflingTile tile = choose_index_shuffling(shape, kClusters);
        EXPECT_GE(std::int64_t{tile.block_tokens} * tile.cluster * tile.clusters, tokens);
        EXPECT_LE(tile.cluster * tile.clusters, 132);
        EXPECT_GE(tile.threads, experts);
        EXPECT_LE(index_shuffling_shared_bytes(shape, tile), kMostBytes);
        EXPECT_GE(tile.lanes * tile.vectors * 4, experts);
        EXPECT_GE(tile.lanes, topk);
      }
    }
  }
}

// 24 SMs that are held, wherever they are, leave room for 5 of the 14 clusters of eight blocks.
TEST(IndexShufflingChoice, BesideCollectivesItsBlocksFindRoomWhereverTheseHoldSms) {
  constexpr int kHeld = 24;
  constexpr int kMostClusters = 5;
  for (const std::int64_t tokens : {1, 127, 1000, 4096, 16384}) {
    const IndexShufflingShape shape{
        .tokens = tokens, .experts_total = 128, .topk = 8, .experts = 128};
    const IndexShufflingTile tile = choose_index_shuffling(shape, kClusters, kHeld);
    EXPECT_LE(tile.cluster, 8) << tokens;
    EXPECT_LE(tile.clusters, kMostClusters) << tokens;
    EXPECT_GE(std::int64_t{tile.block_tokens} * tile.cluster * tile.clusters, tokens);
  }
  const IndexShufflingShape too_many{
      .tokens = 100'000, .experts_total = 512, .topk = 8, .experts = 512};
  EXPECT_EQ(choose_index_shuffling(too_many, kClusters, kHeld),
            choose_index_shuffling(too_many, kClusters));
}

TEST(IndexShufflingChoice, RefusesMoreTokensThanThereIsRoomFor) {
  const IndexShufflingShape shape{
      .tokens = std::int64_t{1} << 26, .experts_total = 256, .topk = 8, .experts = 256};
  EXPECT_THROW(choose_index_shuffling(shape, kClusters), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

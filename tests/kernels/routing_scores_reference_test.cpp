// Laws of the double-precision routing_scores, and the shared memory of its tiles.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/experts/routing_scores/reference.h"

namespace orrery {
namespace {

using Values = std::vector<double>;

// Logits x w^T of one token and hidden 8, of which the first column alone is not zero.
Values scores(const Values& logits, const Values& bias, RouterActivation activation) {
  Values x(8);
  x[0] = 1;
  Values w(8 * logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) w[8 * i] = logits[i];
  return reference::routing_scores(x, w, bias,
                                   {.tokens = 1,
                                    .hidden = 8,
                                    .experts_total = static_cast<std::int64_t>(logits.size()),
                                    .activation = activation});
}

TEST(RoutingScoresReference, ASoftmaxSumsToOneAndKeepsRatios) {
  const Values out = scores({1, 2, 4}, {}, RouterActivation::kSoftmax);
  EXPECT_NEAR(out[0] + out[1] + out[2], 1, 1e-15);
  EXPECT_NEAR(out[1] / out[0], std::exp(1), 1e-14);
  EXPECT_NEAR(out[2] / out[0], std::exp(3), 1e-12);
}

TEST(RoutingScoresReference, ASoftmaxOfLargeLogitsIsFinite) {
  const Values out = scores({1000, 1000, -1000}, {}, RouterActivation::kSoftmax);
  EXPECT_EQ(out, (Values{0.5, 0.5, 0}));
}

TEST(RoutingScoresReference, ASigmoidTakesEachLogitByItself) {
  const Values out = scores({0, 2, -2}, {}, RouterActivation::kSigmoid);
  EXPECT_EQ(out[0], 0.5);
  EXPECT_NEAR(out[1] + out[2], 1, 1e-15);  // sigmoid(v) + sigmoid(-v) = 1
}

TEST(RoutingScoresReference, ABiasIsAddedToTheLogits) {
  EXPECT_EQ(scores({1, 2}, {2, -1}, RouterActivation::kSigmoid),
            scores({3, 1}, {}, RouterActivation::kSigmoid));
}

TEST(RoutingScoresReference, RowsWithoutASlotTakeNoExpert) {
  Values scores{0.25, 0.75, 0.5, 0.5, 1, 0};
  const std::vector<std::int64_t> slots{7, -1, 0};
  reference::pad_scores(scores, slots);
  EXPECT_EQ(scores, (Values{0.25, 0.75, -INFINITY, -INFINITY, 1, 0}));
  reference::pad_scores(scores, {});
  EXPECT_EQ(scores[0], 0.25);
}

TEST(RoutingScoresReference, RefusesWhatIsOutOfRange) {
  EXPECT_THROW(require_routing_scores_shape({.tokens = -1}), std::invalid_argument);
  EXPECT_THROW(require_routing_scores_shape({.hidden = 12}), std::invalid_argument);
  EXPECT_THROW(require_routing_scores_shape({.experts_total = 0}), std::invalid_argument);
  EXPECT_THROW(require_routing_scores_shape({.experts_total = 513}), std::invalid_argument);
  EXPECT_THROW(scores({1, 2}, {1}, RouterActivation::kSoftmax), std::invalid_argument);
}

TEST(RoutingScoresChoice, EveryTileHasRoomForStagesAndLogits) {
  constexpr int kMostBytes = 227 * 1024;
  for (const std::int64_t experts : {1, 16, 17, 100, 256, 512}) {
    for (const std::int64_t tokens : {0, 1, 65, 4096, 16384, 100000}) {
      for (const auto activation : {RouterActivation::kSoftmax, RouterActivation::kSigmoid}) {
        const RoutingScoresShape shape{
            .tokens = tokens, .hidden = 5120, .experts_total = experts, .activation = activation};
        const RoutingScoresTile tile = choose_routing_scores(shape, {132, 66, 30, 14, 6});
        const RoutingScoresLayout layout = routing_scores_layout(tile.columns, tile.rows);
        EXPECT_GE(tile.columns, activation == RouterActivation::kSoftmax ? experts : 16);
        EXPECT_GE(layout.stages, 2);
        EXPECT_LE(layout.stages * layout.stage_bytes, layout.barriers_at);
        EXPECT_LE(layout.logits_at + tile.rows * layout.logits_stride * 4, layout.barriers_at);
        EXPECT_LE(layout.shared_bytes, kMostBytes);
        EXPECT_EQ(tile.rows % tile.cluster, 0);  // rows that each block adds up
      }
    }
  }
}

}  // namespace
}  // namespace orrery

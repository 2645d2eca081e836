#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "kernels/experts/fused_moe/reference.h"
#include "kernels/experts/routing_scores/choice.h"

namespace orrery {
namespace {

constexpr std::size_t kFusedColumns = 8;

// Rows of 8 columns that begin with what is given.
std::vector<double> rows_of_eight(const std::vector<std::vector<double>>& rows) {
  std::vector<double> values;
  for (std::vector<double> row : rows) {
    row.resize(kFusedColumns);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

// `factor` times the identity, 8 x 8.
std::vector<double> diagonal_of_eight(double factor) {
  std::vector<double> values(kFusedColumns * kFusedColumns);
  for (std::size_t i = 0; i < kFusedColumns; ++i) values[i * (kFusedColumns + 1)] = factor;
  return values;
}

std::vector<double> joined_matrices(std::vector<double> first, const std::vector<double>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

FusedMoeShape shape_of_two_experts(std::int64_t tokens, std::int64_t topk) {
  return {.tokens = tokens,
          .hidden = 8,
          .ffn = 8,
          .experts = 2,
          .topk = topk,
          .activation = ExpertActivation::kRelu,
          .router = RouterActivation::kSigmoid};
}

// Logits 3 and -3 for x = 3, turned for x = -3; sigmoid(3) = 0.9526. Expert 0 gives 2 * 5 relu(x),
// expert 1 gives 3 * 7 relu(x): 0 for what is negative. The second column is 1: 10 and 21.
TEST(FusedMoeReference, EachTokenGoesThroughBothLayersOfItsBestExpert) {
  const std::vector<double> x = rows_of_eight({{3, 1}, {-3, 1}});
  const std::vector<double> router = rows_of_eight({{1}, {-1}});
  const reference::FusedMoe found = reference::fused_moe(
      x, router, joined_matrices(diagonal_of_eight(2), diagonal_of_eight(3)),
      joined_matrices(diagonal_of_eight(5), diagonal_of_eight(7)), shape_of_two_experts(2, 1));
  const double weight = 1 / (1 + std::exp(-3.0));
  EXPECT_EQ(found.counts, (std::vector<std::int32_t>{1, 1}));
  EXPECT_NEAR(found.y[0], weight * 30, 1e-12);
  EXPECT_NEAR(found.y[1], weight * 10, 1e-12);
  EXPECT_NEAR(found.y[kFusedColumns], 0, 1e-12);
  EXPECT_NEAR(found.y[kFusedColumns + 1], weight * 21, 1e-12);
}

// The same with expert 1 in the first slot: what is chosen is told by experts, not by slots.
TEST(FusedMoeReference, ExpertsInAnotherOrderGiveTheSame) {
  const std::vector<double> x = rows_of_eight({{3, 1}, {-3, 1}});
  const std::vector<double> router = rows_of_eight({{1}, {-1}});
  const FusedMoeShape shape = shape_of_two_experts(2, 1);
  const auto of = [&](std::vector<double> w1, std::vector<double> w2,
                      const std::vector<std::int32_t>& expert_of_slot) {
    return reference::fused_moe(x, router, w1, w2, shape, {}, {}, {}, {}, {}, expert_of_slot);
  };
  const std::vector<double> first[] = {diagonal_of_eight(2), diagonal_of_eight(3)};
  const std::vector<double> second[] = {diagonal_of_eight(5), diagonal_of_eight(7)};
  const auto in_order =
      of(joined_matrices(first[0], first[1]), joined_matrices(second[0], second[1]), {});
  const auto turned =
      of(joined_matrices(first[1], first[0]), joined_matrices(second[1], second[0]), {1, 0});
  EXPECT_EQ(turned.y, in_order.y);
  EXPECT_EQ(turned.counts, in_order.counts);
  for (const std::vector<std::int32_t>& wrong :
       {std::vector<std::int32_t>{0}, {1, 1}, {0, 2}, {0, 1, 1}}) {
    EXPECT_THROW(static_cast<void>(of(joined_matrices(first[0], first[1]),
                                      joined_matrices(second[0], second[1]), wrong)),
                 std::invalid_argument);
  }
}

// Both experts at equal scores, normalised: half of 10 and half of 21.
TEST(FusedMoeReference, TheRowsOfATokenAreWeighedAndAddedUp) {
  FusedMoeShape shape = shape_of_two_experts(1, 2);
  shape.normalises = true;
  const reference::FusedMoe found =
      reference::fused_moe(rows_of_eight({{1}}), rows_of_eight({{0}, {0}}),
                           joined_matrices(diagonal_of_eight(2), diagonal_of_eight(3)),
                           joined_matrices(diagonal_of_eight(5), diagonal_of_eight(7)), shape);
  EXPECT_NEAR(found.y[0], 15.5, 1e-12);
}

// silu(2) * 3 = 2 / (1 + e^-2) * 3: the gate's rows come first.
TEST(FusedMoeReference, GatedLayersMultiplyByTheGate) {
  FusedMoeShape shape = shape_of_two_experts(1, 1);
  shape.experts = 1;
  shape.activation = ExpertActivation::kSwiglu;
  shape.normalises = true;
  const reference::FusedMoe found = reference::fused_moe(
      rows_of_eight({{1}}), rows_of_eight({{0}}),
      joined_matrices(diagonal_of_eight(2), diagonal_of_eight(3)), diagonal_of_eight(1), shape);
  EXPECT_NEAR(found.y[0], 6 / (1 + std::exp(-2.0)), 1e-12);
}

// Two experts of one token each; the third that chooses expert 0 finds it full, the fourth keeps
// the other's half.
TEST(FusedMoeReference, AnExpertTakesNoMoreThanItsCapacity) {
  FusedMoeShape shape = shape_of_two_experts(4, 1);
  shape.capacity_factor = 0.5;  // ceil(0.5 * 4 / 2) = 1
  const std::vector<double> w1 = joined_matrices(diagonal_of_eight(2), diagonal_of_eight(3));
  const std::vector<double> w2 = joined_matrices(diagonal_of_eight(5), diagonal_of_eight(7));
  const reference::FusedMoe found = reference::fused_moe(
      rows_of_eight({{3, 1}, {3, 1}, {-3, 1}, {-3, 1}}), rows_of_eight({{1}, {-1}}), w1, w2, shape);
  const double weight = 1 / (1 + std::exp(-3.0));
  EXPECT_EQ(found.counts, (std::vector<std::int32_t>{1, 1}));
  EXPECT_NEAR(found.y[1], weight * 10, 1e-12);
  EXPECT_EQ(found.y[kFusedColumns + 1], 0);
  EXPECT_NEAR(found.y[2 * kFusedColumns + 1], weight * 21, 1e-12);
  EXPECT_EQ(found.y[3 * kFusedColumns + 1], 0);
  shape.topk = 2;
  shape.normalises = true;
  shape.capacity_factor = 0.25;  // ceil(0.25 * 8 / 2) = 1 of both
  const reference::FusedMoe both = reference::fused_moe(
      rows_of_eight({{0, 1}, {0, 1}, {0, 1}, {0, 1}}), rows_of_eight({{1}, {-1}}), w1, w2, shape);
  EXPECT_NEAR(both.y[1], 15.5, 1e-12);
  for (std::size_t token = 1; token < 4; ++token) EXPECT_EQ(both.y[token * kFusedColumns + 1], 0);
}

// Logits 3 and -3 become -1 and 1: the second expert's.
TEST(FusedMoeReference, ABiasOnTheLogitsChoosesAndWeighs) {
  const std::vector<double> bias{-4, 4};
  const reference::FusedMoe found =
      reference::fused_moe(rows_of_eight({{3, 1}}), rows_of_eight({{1}, {-1}}),
                           joined_matrices(diagonal_of_eight(2), diagonal_of_eight(3)),
                           joined_matrices(diagonal_of_eight(5), diagonal_of_eight(7)),
                           shape_of_two_experts(1, 1), {}, {}, {}, {}, bias);
  EXPECT_EQ(found.counts, (std::vector<std::int32_t>{0, 1}));
  EXPECT_NEAR(found.scores[0], 1 / (1 + std::exp(1.0)), 1e-12);
  EXPECT_NEAR(found.y[1], 21 / (1 + std::exp(-1.0)), 1e-12);
}

// relu(2 * 3) * 5 of the first 8 columns and relu(4 * 3) * 11 of the others, with weight 1.
TEST(FusedMoeReference, SharedExpertsTakeEveryTokenWithWeightOne) {
  FusedMoeShape shape = shape_of_two_experts(1, 1);
  shape.normalises = true;
  shape.shared = 2;
  std::vector<double> shared_w2(2 * kFusedColumns * kFusedColumns);
  for (std::size_t i = 0; i < kFusedColumns; ++i) {
    shared_w2[i * 2 * kFusedColumns + i] = 5;
    shared_w2[i * 2 * kFusedColumns + kFusedColumns + i] = 11;
  }
  const reference::FusedMoe found = reference::fused_moe(
      rows_of_eight({{3}}), rows_of_eight({{1}, {-1}}),
      joined_matrices(diagonal_of_eight(1), diagonal_of_eight(1)),
      joined_matrices(diagonal_of_eight(1), diagonal_of_eight(1)), shape, {}, {},
      joined_matrices(diagonal_of_eight(2), diagonal_of_eight(4)), shared_w2);
  EXPECT_NEAR(found.y[0], 3 + 30 + 132, 1e-12);
  EXPECT_THROW(static_cast<void>(reference::fused_moe(
                   rows_of_eight({{3}}), rows_of_eight({{1}, {-1}}),
                   joined_matrices(diagonal_of_eight(1), diagonal_of_eight(1)),
                   joined_matrices(diagonal_of_eight(1), diagonal_of_eight(1)), shape)),
               std::invalid_argument);
}

TEST(FusedMoeReference, ATokenThatIsNoNumberIsFaultyAndNoOther) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const reference::FusedMoe found = reference::fused_moe(
      rows_of_eight({{1}, {none}}), rows_of_eight({{1}, {-1}}),
      joined_matrices(diagonal_of_eight(2), diagonal_of_eight(3)),
      joined_matrices(diagonal_of_eight(5), diagonal_of_eight(7)), shape_of_two_experts(2, 1));
  EXPECT_EQ(found.faulty, (std::vector<std::int32_t>{1}));
  EXPECT_TRUE(std::isfinite(found.y[0]));
  EXPECT_TRUE(std::isnan(found.y[kFusedColumns]));
}

// Of fp8 a row's largest value is 448 steps: 3 in a row with 1,000 is 1.344 of them, which becomes
// 1.375. One expert that changes nothing.
TEST(FusedMoeReference, RowsOfFp8HaveTheScaleOfTheirLargestValue) {
  constexpr std::size_t kColumns = 16;
  std::vector<double> one(kColumns * kColumns);
  for (std::size_t i = 0; i < kColumns; ++i) one[i * kColumns + i] = 1;
  std::vector<double> x(kColumns);
  x[0] = 1000;
  x[1] = 3;
  FusedMoeShape shape{.tokens = 1,
                      .hidden = kColumns,
                      .ffn = kColumns,
                      .activation = ExpertActivation::kRelu,
                      .normalises = true};
  const auto second = [&] {
    return reference::fused_moe(x, std::vector<double>(kColumns), one, one, shape).y[1];
  };
  EXPECT_NEAR(second(), 3, 1e-12);
  shape.is_fp8 = true;
  EXPECT_NEAR(second(), 1.375 * 1000 / 448, 1e-12);
}

// Both experts score alike; the bias makes the second the better one and is in no weight. Of two
// groups of one expert each, the one that is kept is the better one too.
TEST(FusedMoeReference, TheCorrectionBiasIsForTheChoiceAlone) {
  FusedMoeShape shape = shape_of_two_experts(1, 1);
  const std::vector<double> bias{0.1, 0.2};
  for (const std::int64_t groups : {1, 2}) {
    shape.groups = groups;
    const reference::FusedMoe found = reference::fused_moe(
        rows_of_eight({{1}}), rows_of_eight({{0}, {0}}),
        joined_matrices(diagonal_of_eight(2), diagonal_of_eight(3)),
        joined_matrices(diagonal_of_eight(5), diagonal_of_eight(7)), shape, {}, bias);
    EXPECT_EQ(found.counts, (std::vector<std::int32_t>{0, 1}));
    EXPECT_NEAR(found.y[0], 0.5 * 21, 1e-12);
  }
  shape.groups = 2;
  shape.topk = 2;
  EXPECT_THROW(require_fused_moe_shape(shape), std::invalid_argument);  // one group has one expert
}

TEST(FusedMoeReference, RefusesShapesThatTheKernelDoesNotTake) {
  EXPECT_NO_THROW(require_fused_moe_shape(shape_of_two_experts(1, 2)));
  EXPECT_THROW(require_fused_moe_shape(shape_of_two_experts(1, 3)), std::invalid_argument);
  FusedMoeShape odd = shape_of_two_experts(1, 1);
  odd.ffn = 12;
  EXPECT_THROW(require_fused_moe_shape(odd), std::invalid_argument);
  FusedMoeShape many = shape_of_two_experts(1, 1);
  many.experts = 513;
  EXPECT_THROW(require_fused_moe_shape(many), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

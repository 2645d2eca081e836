// Laws of the references that move rows of routed experts: gather_mul, scatter_add,
// combine_shuffling and split_shuffling; and where one expert's rows lie.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/experts/combine_shuffling/reference.h"
#include "kernels/experts/expert_gather/expert_rows.h"
#include "kernels/experts/gather_mul/made_rows.h"
#include "kernels/experts/gather_mul/reference.h"
#include "kernels/experts/scatter_add/reference.h"

namespace orrery {
namespace {

using Integers = std::vector<std::int32_t>;
using Values = std::vector<double>;

Values counting(std::size_t count) {
  Values values(count);
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST(GatherMulReference, WeighsRowsAndGivesZerosForTokensThatAreNotThere) {
  const Values x{1, 2, 3, 4};
  EXPECT_EQ(reference::gather_mul(x, Integers{1, -1, 0, 2}, Values{10, 1, 100, 1}, 2),
            (Values{30, 40, 0, 0, 100, 200, 0, 0}));
}

TEST(GatherMulReference, RejectsRowsWithoutWeights) {
  EXPECT_THROW(reference::gather_mul(Values(4), Integers{0, 1}, Values{1}, 2),
               std::invalid_argument);
}

TEST(PaddedGroups, KeepTheOrderOfRowsAndCutThoseBeyondTheCapacity) {
  // Groups of 1, 0 and 3 rows with a capacity of 2.
  EXPECT_EQ(reference::padded_groups(counting(4), Integers{1, 0, 3}, 2, 1),
            (Values{1, 0, 0, 0, 2, 3}));
}

TEST(PaddedGroups, RejectCountsOfMoreRowsThanThereAre) {
  EXPECT_THROW(reference::padded_groups(counting(3), Integers{1, 3}, 4, 1), std::invalid_argument);
}

TEST(PaddedGroups, AreTakenApartByWithoutPadding) {
  const Integers counts{2, 0, 1, 3};
  const Values rows = counting(18);
  const Values padded = reference::padded_groups(rows, counts, 5, 3);
  EXPECT_EQ(reference::without_padding(padded, counts, 4, 3), rows);
}

TEST(WithoutPadding, TakesSeveralExpertsForAGroup) {
  // Two groups of two experts: 1 + 2 rows and 0 + 1 rows, 4 rows apart.
  EXPECT_EQ(reference::without_padding(counting(8), Integers{1, 2, 0, 1}, 2, 1),
            (Values{1, 2, 3, 5}));
}

TEST(WithoutPadding, RejectsGroupsBeyondTheirBound) {
  EXPECT_THROW(reference::without_padding(counting(4), Integers{3, 0}, 2, 1),
               std::invalid_argument);
}

TEST(ScatterAddReference, AddsWeighedRowsToTheBaseAndLeavesOutThoseThatAreNotThere) {
  // Token 0: 100 + 2 * 1 + 5 * 3; token 1: 200 + 3 * 2; its other choice is another rank's.
  EXPECT_EQ(reference::scatter_add(Values{100, 200}, Values{1, 2, 3}, Integers{0, 2, 1, -1}, 2,
                                   Values{2, 3, 5}, 1),
            (Values{117, 206}));
}

TEST(ScatterAddReference, OfWhatWasGatheredGivesEachTokenItsSumOfWeights) {
  // Rows are tokens times weights, so a token comes back times the sum of its weights.
  const MadeRows made = make_rows({.tokens = 9, .rows = 36, .experts = 6}, 5);
  const Values x = counting(18);
  const Values weights = counting(36);
  const Values xs = reference::gather_mul(x, made.row_token, weights, 2);
  const Values out = reference::scatter_add({}, xs, made.token_rows, 4, {}, 2);
  for (std::size_t token = 0; token < 9; ++token) {
    double sum = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      sum += weights[static_cast<std::size_t>(made.token_rows[token * 4 + k])];
    }
    EXPECT_DOUBLE_EQ(out[token * 2], x[token * 2] * sum);
    EXPECT_DOUBLE_EQ(out[token * 2 + 1], x[token * 2 + 1] * sum);
  }
}

TEST(MadeRows, AreSortedByExpertAndThenByTokenEachTokenInDifferentExperts) {
  const MadeRows made = make_rows({.tokens = 50, .rows = 130, .experts = 8}, 1);
  ASSERT_EQ(made.topk, 3);  // 130 rows of 50 tokens
  ASSERT_EQ(made.row_token.size(), 130U);
  std::size_t begin = 0;
  for (const std::int32_t count : made.counts) {
    const auto first = made.row_token.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + count;
    // Strictly ascending: no token twice in an expert.
    EXPECT_EQ(std::adjacent_find(first, last, std::greater_equal<>()), last);
    begin += static_cast<std::size_t>(count);
  }
  EXPECT_EQ(begin, 130U);
  for (std::size_t choice = 0; choice < made.token_rows.size(); ++choice) {
    const std::int32_t row = made.token_rows[choice];
    if (row >= 0) {
      EXPECT_EQ(made.row_token[static_cast<std::size_t>(row)],
                static_cast<std::int32_t>(choice / 3));
    }
  }
  EXPECT_EQ(std::ranges::count(made.token_rows, -1), 20);
}

TEST(MadeRows, NeedAnExpertForEachChoice) {
  EXPECT_THROW(make_rows({.tokens = 4, .rows = 12, .experts = 2}, 1), std::invalid_argument);
}

TEST(ShuffledRows, OfADenseSideComeExpertByExpertRankByRank) {
  // Rank 0 has 1 and 2 rows of two experts, rank 1 has 3 and 0: rows 0 | 1 2 | 3 4 5.
  EXPECT_EQ(reference::shuffled_rows(Integers{1, 2, 3, 0}, {.ranks = 2, .experts = 2, .groups = 2}),
            (std::vector<std::int64_t>{0, 3, 4, 5, 1, 2}));
}

TEST(ShuffledRows, OfAPaddedSideSkipTheRowsOfOtherExperts) {
  // Experts 1 and 2 of three; ranks 10 rows apart with all their rows: 2 1 1 and 0 2 3.
  const Integers counts{2, 1, 1, 0, 2, 3};
  reference::ShuffleSizes sizes{
      .ranks = 2, .experts = 3, .groups = 2, .first = 1, .bound = 10, .holds_all = true};
  EXPECT_EQ(reference::shuffled_rows(counts, sizes),
            (std::vector<std::int64_t>{2, 10, 11, 3, 12, 13, 14}));
  // On the way back a rank's rows begin where its part does.
  sizes.holds_all = false;
  EXPECT_EQ(reference::shuffled_rows(counts, sizes),
            (std::vector<std::int64_t>{0, 10, 11, 1, 12, 13, 14}));
  EXPECT_EQ(reference::group_counts(counts, sizes), (Integers{3, 4}));
}

TEST(ShuffledRows, ArePutBackByTheInverse) {
  const Integers counts{3, 0, 5, 1, 2, 2, 0, 7};
  const auto order = reference::shuffled_rows(counts, {.ranks = 4, .experts = 2, .groups = 2});
  const Values rows = counting(40);
  const Values combined = reference::take_rows(rows, order, 2);
  EXPECT_NE(combined, rows);
  EXPECT_EQ(reference::put_rows(combined, order, 2, Values(40)), rows);
}

TEST(ShuffledRows, RejectRanksBeyondTheirBoundAndCountsOfOtherSizes) {
  EXPECT_THROW(
      reference::shuffled_rows(Integers{3, 1}, {.ranks = 1, .experts = 2, .groups = 2, .bound = 3}),
      std::invalid_argument);
  EXPECT_THROW(reference::shuffled_rows(Integers{3, 1, 1}, {.ranks = 1, .experts = 2, .groups = 2}),
               std::invalid_argument);
}

TEST(ExpertRowsOf, LieBehindThoseOfTheExpertsAhead) {
  const Integers counts{2, 0, 3};
  EXPECT_EQ(expert_rows(counts, 1, 5).count, 0);
  EXPECT_EQ(expert_rows(counts, 2, 5).first, 2);
  EXPECT_EQ(expert_rows(counts, 2, 5).count, 3);
}

TEST(ExpertRowsOf, RejectCountsThatDoNotFit) {
  EXPECT_THROW(expert_rows(Integers{2, 3}, 1, 4), std::invalid_argument);
  EXPECT_THROW(expert_rows(Integers{2, -3}, 1, 4), std::invalid_argument);
  EXPECT_THROW(expert_rows(Integers{2}, 1, 4), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

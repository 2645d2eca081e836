#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/experts/grouped_gemm/chosen_counts.h"

namespace orrery {
namespace {

std::int64_t sum(const std::vector<std::int32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

TEST(GroupedGemmCounts, GiveEveryActiveGroupARowAndAddUp) {
  for (const auto& [rows, groups, active] : {std::array{8, 128, 8},
                                             {9, 8, 8},
                                             {128, 128, 82},
                                             {512, 256, 222},
                                             {12288, 64, 64},
                                             {122880, 64, 61},
                                             {7, 16, 1},
                                             {100000, 16, 1},
                                             {131072, 256, 256}}) {
    const auto counts = chosen_counts(rows, groups, active);
    EXPECT_EQ(std::ssize(counts), groups);
    EXPECT_EQ(sum(counts), rows);
    EXPECT_EQ(std::ranges::count_if(counts, [](int count) { return count > 0; }), active);
    EXPECT_GE(*std::ranges::min_element(counts), 0);
  }
}

TEST(GroupedGemmCounts, AreOneRowEachWhereThereAreNoMore) {
  const auto counts = chosen_counts(16, 128, 16);
  EXPECT_EQ(*std::ranges::max_element(counts), 1);
  EXPECT_EQ(counts[8], 1);  // evenly over all: 0, 8, 16, ...
}

// Of a Poisson distribution: the variance is the mean, at 128 rows a group 11.3 squared. Quantiles
// in the middles of 128 parts leave out what lies beyond 2.7 deviations, 2 % of the variance.
TEST(GroupedGemmCounts, SpreadAsIndependentChoicesDo) {
  const auto counts = chosen_counts(16384, 128, 128);
  double squares = 0;
  for (const int count : counts) squares += (count - 128.0) * (count - 128.0);
  EXPECT_NEAR(squares / 128, 128, 0.08 * 128);
}

// Of the Poisson distribution of rate 1 without 0 a share of 1 / (e - 1) = 0.582 is 1, the mean is
// e / (e - 1) = 1.582.
TEST(GroupedGemmCounts, OfFewRowsAreMostlyOne) {
  const auto counts = chosen_counts(1582, 1000, 1000);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(counts, 1)), 582, 5);
}

TEST(GroupedGemmCounts, RefuseGroupsWithoutRows) {
  EXPECT_THROW(chosen_counts(3, 8, 4), std::invalid_argument);
  EXPECT_THROW(chosen_counts(9, 8, 9), std::invalid_argument);
  EXPECT_THROW(chosen_counts(9, 8, 0), std::invalid_argument);
  EXPECT_EQ(sum(chosen_counts(0, 8, 0)), 0);
}

}  // namespace
}  // namespace orrery

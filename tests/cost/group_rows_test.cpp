// Rows that lie unevenly in the groups of a grouped gemm.

#include "sim/cost/group_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace orrery {
namespace {

double sum_of(std::span<const GroupRows> groups, double GroupRows::* member) {
  double sum = 0;
  for (const GroupRows& one : groups) {
    sum += member == &GroupRows::groups ? one.groups : one.groups * one.rows;
  }
  return sum;
}

// Zipf with exponent 1 over so many experts.
std::vector<double> zipf(int experts) {
  std::vector<double> choices(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < choices.size(); ++i) choices[i] = 1 / static_cast<double>(i + 1);
  return choices;
}

TEST(GroupRows, HoldAllRowsAndGroupsTheFullestByItself) {
  const std::vector<double> choices = zipf(128);
  const double all = std::accumulate(choices.begin(), choices.end(), 0.0);
  const std::vector<GroupRows> groups = group_rows(choices, 6000, 128, 128);
  EXPECT_NEAR(sum_of(groups, &GroupRows::groups), 128, 1e-9);
  EXPECT_NEAR(sum_of(groups, &GroupRows::rows), 6000, 1e-6);
  EXPECT_EQ(groups.front().groups, 1);
  EXPECT_NEAR(groups.front().rows, 6000 / all, 1e-6);
  EXPECT_NEAR(groups[1].rows, 6000 / all / 2, 1e-6);
  EXPECT_TRUE(std::ranges::is_sorted(groups, std::ranges::greater{}, &GroupRows::rows));
}

// A rank that holds an eighth of the experts has those in the middle of eighths of them, however
// many of them have rows.
TEST(GroupRows, OfAPartOfTheExpertsAreAsUnequalAsAll) {
  const std::vector<GroupRows> all = group_rows(zipf(256), 8192, 256, 256);
  const std::vector<GroupRows> part = group_rows(zipf(256), 1024, 32, 32);
  EXPECT_NEAR(sum_of(part, &GroupRows::rows), 1024, 1e-6);
  EXPECT_GT(part.front().rows, 2 * 1024.0 / 32);
  EXPECT_LT(part.front().rows, all.front().rows);
  const std::vector<GroupRows> active = group_rows(zipf(256), 64, 32, 10);
  EXPECT_NEAR(sum_of(active, &GroupRows::groups), 10, 1e-9);
  EXPECT_NEAR(sum_of(active, &GroupRows::rows), 64, 1e-6);
}

TEST(GroupRows, AreNoneOfNothing) {
  EXPECT_TRUE(group_rows({}, 100, 8, 8).empty());
  EXPECT_TRUE(group_rows(zipf(8), 0, 8, 8).empty());
  EXPECT_TRUE(group_rows(zipf(8), 100, 8, 0).empty());
  EXPECT_TRUE(group_rows(std::vector<double>(8, 0.0), 100, 8, 8).empty());
}

// The expectation over a Poisson distribution, summed up.
double summed_passes(double mean, int most) {
  double probability = std::exp(-mean);
  double passes = 0;
  for (int count = 0; count < 40 * most; ++count) {
    const int needed = (count + most - 1) / most;
    passes += probability * std::max(needed, 1);
    probability *= mean / (count + 1);
  }
  return passes;
}

TEST(ExpectedPasses, AreThoseOfPoissonCounts) {
  EXPECT_EQ(expected_passes(1, 64), 1);
  for (const double rows : {20.0, 48.0, 60.0, 64.0, 70.0, 100.0, 229.0, 400.0}) {
    EXPECT_NEAR(expected_passes(rows, 64), summed_passes(rows, 64), 0.03) << rows;
  }
}

TEST(UnevenOverEven, IsOneForEqualGroupsAndForTimesThatGrowAsRows) {
  const std::vector<double> alike(64, 1.0);
  const auto stairs = [](double rows) { return std::ceil(rows / 64); };
  EXPECT_NEAR(uneven_over_even(group_rows(alike, 6400, 64, 64), stairs), 1, 1e-12);
  const std::vector<GroupRows> skewed = group_rows(zipf(64), 6400, 64, 64);
  EXPECT_NEAR(uneven_over_even(skewed, [](double rows) { return 3 * rows; }), 1, 1e-12);
  EXPECT_NEAR(uneven_over_even(skewed, [](double /*rows*/) { return 5.0; }), 1, 1e-12);
  // The longer of weights that all must read and arithmetic: full groups gain nothing from empty
  // ones.
  EXPECT_GT(uneven_over_even(skewed, [](double rows) { return std::max(rows, 150.0); }), 1.2);
}

}  // namespace
}  // namespace orrery

// Loads that drift: what stays of them, and when which one is in force.

#include "sim/model/expert_drift.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "sim/model/expert_load_sources.h"

namespace orrery {
namespace {

constexpr std::uint64_t kSeed = 20250919;

std::vector<double> sorted(std::vector<double> shares) {
  std::ranges::sort(shares);
  return shares;
}

TEST(ExpertDrift, SharesStayAndPassToOtherExperts) {
  const ExpertLoad first = zipf_load(64, 1.0, 3);
  for (const double share : {0.01, 0.1, 0.5, 1.0}) {
    const ExpertLoad drifted = drifted_load(first, share, 1, kSeed);
    EXPECT_EQ(sorted(drifted.shares), sorted(first.shares));
    std::int64_t num_changed = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      num_changed += drifted.shares[i] != first.shares[i] ? 1 : 0;
    }
    // All shares of a Zipf distribution differ, so each expert that is drawn gets another one. At
    // least two can exchange theirs.
    EXPECT_EQ(num_changed, std::max(2L, std::lround(share * 64))) << share;
  }
}

TEST(ExpertDrift, TheSeedSaysWhichExpertsChange) {
  const ExpertLoad first = zipf_load(64, 1.0, 3);
  EXPECT_EQ(drifted_load(first, 0.2, 5, kSeed), drifted_load(first, 0.2, 5, kSeed));
  EXPECT_NE(drifted_load(first, 0.2, 5, kSeed), drifted_load(first, 0.2, 5, kSeed + 1));
  EXPECT_EQ(drifted_load(first, 0.2, 0, kSeed), first);
}

TEST(ExpertDrift, WhatCannotDriftIsAnError) {
  EXPECT_THROW(drifted_load({}, 0.5, 1, 0), std::invalid_argument);
  const ExpertLoad load = zipf_load(8, 1.0, 0);
  EXPECT_THROW(drifted_load(load, 0, 1, 0), std::invalid_argument);
  EXPECT_THROW(drifted_load(load, 1.5, 1, 0), std::invalid_argument);
  EXPECT_THROW(drifted_load(load, 0.5, -1, 0), std::invalid_argument);
}

TEST(ExpertDrift, LoadsFollowEachOtherAndTheLastOneStays) {
  const ExpertDrift drift{.loads = {zipf_load(8, 1.0, 1), zipf_load(8, 1.0, 2)},
                          .interval = Seconds(10)};
  EXPECT_EQ(drift.index_at(Seconds(9.9)), 0);
  EXPECT_EQ(drift.index_at(Seconds(10)), 1);
  EXPECT_EQ(drift.index_at(Seconds(1e9)), 1);
  EXPECT_EQ(drift.end_of(0), Seconds(10));
  EXPECT_GT(drift.end_of(1), Seconds(1e300));
  EXPECT_EQ(drift.load(1), drift.loads[1]);
}

TEST(ExpertDrift, WithAShareItGoesOnFromTheLastLoad) {
  const ExpertDrift drift{
      .loads = {zipf_load(8, 1.0, 1)}, .interval = Seconds(10), .share = 0.5, .seed = kSeed};
  EXPECT_EQ(drift.index_at(Seconds(35)), 3);
  EXPECT_EQ(drift.end_of(3), Seconds(40));
  EXPECT_EQ(drift.load(0), drift.loads[0]);
  EXPECT_EQ(drift.load(3), drifted_load(drift.loads[0], 0.5, 3, kSeed));
}

TEST(ExpertDrift, ALoadWithoutADriftNeverEnds) {
  const ExpertDrift drift{.loads = {zipf_load(8, 1.0, 1)}};
  EXPECT_EQ(drift.index_at(Seconds(1e12)), 0);
  EXPECT_GT(drift.end_of(0), Seconds(1e300));
}

TEST(ExpertDrift, ATraceHasCountsOfIntervals) {
  const auto counts = interval_counts(
      "interval,expert,count\n"
      "1,0,5\n"
      "0,2,3\n"
      "0,0,1\n",
      3);
  using Counts = std::vector<std::vector<std::int64_t>>;
  EXPECT_EQ(counts, (Counts{{1, 0, 3}, {5, 0, 0}}));
  EXPECT_THROW(interval_counts("expert,count\n0,1\n", 3), std::invalid_argument);
  EXPECT_THROW(interval_counts("interval,expert,count\n1,0,1\n", 3), std::invalid_argument);
  EXPECT_THROW(interval_counts("interval,expert,count\n", 3), std::invalid_argument);
  EXPECT_THROW(interval_counts("interval,expert,count\n-1,0,1\n", 3), std::invalid_argument);
  EXPECT_THROW(interval_counts("interval,expert,count\n0,0,1\n0,0,1\n", 3), std::invalid_argument);
  EXPECT_THROW(trace_counts("interval,expert,count\n0,0,1\n", 3), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

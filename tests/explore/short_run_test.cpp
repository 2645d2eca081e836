#include "sim/explore/short_run.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace orrery {
namespace {

Workload workload_of(std::int64_t num_requests) {
  Workload workload;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    workload.requests.push_back({.id = i, .prompt_tokens = 100, .output_tokens = 11});
  }
  return workload;
}

// `num_above` requests whose first token takes 2 s and whose others 200 ms each, the rest half of
// that.
std::vector<RequestRecord> served(std::int64_t count, std::int64_t num_above) {
  std::vector<RequestRecord> records;
  for (std::int64_t i = 0; i < count; ++i) {
    const double factor = i < num_above ? 1 : 0.5;
    records.push_back({.id = i,
                       .output_tokens = 11,
                       .first_token = Seconds(2 * factor),
                       .finish = Seconds(4 * factor)});
  }
  return records;
}

Slo slo_of(LatencyMetric metric, double percentile, double limit) {
  return {.limits = {{.metric = metric, .percentile = percentile, .limit = Seconds(limit)}}};
}

TEST(ShortRun, IsAnEighthAndAtLeastAHundred) {
  EXPECT_EQ(first_part(workload_of(2000)).requests.size(), 250);
  EXPECT_EQ(first_part(workload_of(400)).requests.size(), 100);
  EXPECT_EQ(first_part(workload_of(60)).requests.size(), 60);
}

// Of 1,000 requests 10 may lie above the p99.
TEST(ShortRun, IsLostWhenMoreAreAboveThanTheWholeMayHave) {
  const Workload whole = workload_of(1000);
  for (const Slo& slo :
       {slo_of(LatencyMetric::kTtft, 99, 1.9), slo_of(LatencyMetric::kTpot, 99, 0.19),
        slo_of(LatencyMetric::kE2e, 99, 3.9)}) {
    EXPECT_FALSE(is_lost(slo, whole, served(125, 10)));
    EXPECT_TRUE(is_lost(slo, whole, served(125, 11)));
  }
}

// Half of 125 above 200 ms, a limit of 150 ms: far above. A limit of 190 ms is not that far below.
TEST(ShortRun, IsLostWhenATypicalLatencyIsFarAbove) {
  const Workload whole = workload_of(1000);
  const auto records = served(125, 63);
  EXPECT_TRUE(is_lost(slo_of(LatencyMetric::kTpot, 50, 0.15), whole, records));
  EXPECT_FALSE(is_lost(slo_of(LatencyMetric::kTpot, 50, 0.19), whole, records));
  EXPECT_FALSE(is_lost(slo_of(LatencyMetric::kTpot, 50, 0.15), whole, served(125, 62)));
  // The mean: (63 * 200 + 62 * 100) / 125 = 150.4 ms.
  EXPECT_TRUE(is_lost(slo_of(LatencyMetric::kTpot, 0, 0.12), whole, records));
  EXPECT_FALSE(is_lost(slo_of(LatencyMetric::kTpot, 0, 0.13), whole, records));
}

// 99 % of 1,000 requests are to keep their limits: 10 may not.
TEST(ShortRun, IsLostWhenMoreMissTheirOwnLimitsThanMay) {
  const Slo slo{.ttft = Seconds(1.5), .attainment = 0.99};
  EXPECT_FALSE(is_lost(slo, workload_of(1000), served(125, 10)));
  EXPECT_TRUE(is_lost(slo, workload_of(1000), served(125, 11)));
}

// Requests of the warm-up count on neither side.
TEST(ShortRun, LeavesTheWarmUpOut) {
  Workload whole = workload_of(1000);
  whole.warmup_requests = 900;
  auto records = served(925, 2);
  const Slo slo = slo_of(LatencyMetric::kTtft, 99, 1.9);
  EXPECT_TRUE(is_lost(slo, whole, records));  // 1 of 100 may
  for (std::size_t i = 0; i < 900; ++i) records[i].is_measured = false;
  EXPECT_FALSE(is_lost(slo, whole, records));
}

}  // namespace
}  // namespace orrery

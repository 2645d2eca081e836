#include "sim/serve/slo.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <vector>

#include "sim/serve/metrics.h"
#include "sim/serve/serve.h"

namespace orrery {
namespace {

// Request i of `count` has its first token after i + 1 seconds and ten more tokens at one a second.
std::vector<RequestRecord> records(int count) {
  std::vector<RequestRecord> made;
  for (int i = 0; i < count; ++i) {
    RequestRecord record;
    record.id = i;
    record.prompt_tokens = 1;
    record.output_tokens = 11;
    record.first_token = Seconds(i + 1.0);
    record.finish = Seconds(i + 11.0);
    made.push_back(record);
  }
  return made;
}

TEST(Slo, PercentilesAreNearestRank) {
  Slo slo;
  slo.limits = {{.metric = LatencyMetric::kTtft, .percentile = 99, .limit = Seconds(198)},
                {.metric = LatencyMetric::kTtft, .percentile = 99.5, .limit = Seconds(198)},
                {.metric = LatencyMetric::kTtft, .percentile = 0, .limit = Seconds(100)},
                {.metric = LatencyMetric::kTpot, .percentile = 100, .limit = Seconds(1)},
                {.metric = LatencyMetric::kE2e, .percentile = 50, .limit = Seconds(110)}};
  const auto all = records(200);
  const auto checks = check_slo(slo, all, serving_metrics(all, {}, slo));
  ASSERT_EQ(checks.size(), 5U);
  EXPECT_EQ(checks[0].name, "ttft_p99");
  EXPECT_EQ(checks[0].value, 198);  // the 198th of 200
  EXPECT_TRUE(checks[0].is_met());
  EXPECT_EQ(checks[1].name, "ttft_p99.5");
  EXPECT_EQ(checks[1].value, 199);
  EXPECT_FALSE(checks[1].is_met());
  EXPECT_EQ(checks[2].name, "ttft_mean");
  EXPECT_EQ(checks[2].value, 100.5);
  EXPECT_EQ(checks[3].name, "tpot_max");
  EXPECT_EQ(checks[3].value, 1);
  EXPECT_EQ(checks[4].value, 110);
}

TEST(Slo, AttainmentAndGoodputCountRequests) {
  Slo slo;
  slo.ttft = Seconds(90);  // of 100 requests 90 do
  slo.attainment = 0.9;
  slo.goodput = 0.9;
  const auto all = records(100);
  auto metrics = serving_metrics(all, {}, slo);
  auto checks = check_slo(slo, all, metrics);
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_EQ(checks[0].value, 0.9);
  EXPECT_TRUE(checks[0].is_met());
  EXPECT_FALSE(checks[0].is_at_most);
  EXPECT_EQ(checks[1].value, 90 / 110.0);  // in 110 s
  EXPECT_FALSE(checks[1].is_met());
  EXPECT_NEAR(checks[1].headroom(), 90 / 110.0 / 0.9, 1e-15);
}

TEST(Slo, WarmUpIsNotCounted) {
  Slo slo;
  slo.limits = {{.metric = LatencyMetric::kTtft, .percentile = 100, .limit = Seconds(5)}};
  auto all = records(10);
  for (std::size_t i = 5; i < 10; ++i) all[i].is_measured = false;
  EXPECT_EQ(check_slo(slo, all, serving_metrics(all, {}, slo))[0].value, 5);
}

TEST(Slo, NamesOfStatistics) {
  for (const char* name : {"mean", "max", "p50", "p95", "p99", "p99.9"}) {
    EXPECT_EQ(statistic_name(parse_statistic(name)), name);
  }
  for (const char* name : {"", "p", "99", "p0", "p101", "p9x", "median", "pnan"}) {
    EXPECT_THROW((void)parse_statistic(name), std::invalid_argument) << name;
  }
}

}  // namespace
}  // namespace orrery

#include "sim/serve/metrics.h"

#include <gtest/gtest.h>

#include <numeric>

namespace orrery {
namespace {

RequestRecord record(std::int64_t id, double arrival, double first, double finish,
                     std::int64_t output) {
  return {.id = id,
          .prompt_tokens = 10,
          .output_tokens = output,
          .arrival = Seconds(arrival),
          .first_scheduled = Seconds(arrival),
          .first_token = Seconds(first),
          .finish = Seconds(finish)};
}

TEST(Metrics, QuantilesAreNearestRank) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);  // 1..100
  const Quantiles found = quantiles(values);
  EXPECT_EQ(found.p50, 50);
  EXPECT_EQ(found.p90, 90);
  EXPECT_EQ(found.p95, 95);
  EXPECT_EQ(found.p99, 99);
  EXPECT_EQ(found.max, 100);
  EXPECT_DOUBLE_EQ(found.mean, 50.5);
}

TEST(Metrics, TpotLeavesOutTheFirstToken) {
  // 5 tokens, first at 1 s, last at 3 s: 2 s / 4.
  EXPECT_DOUBLE_EQ(tpot(record(0, 0, 1, 3, 5)).value(), 0.5);
  EXPECT_DOUBLE_EQ(tpot(record(0, 0, 1, 1, 1)).value(), 0);
}

TEST(Metrics, GoodputCountsRequestsThatMeetEveryLimit) {
  const std::vector<RequestRecord> records = {record(0, 0, 1, 2, 11),    // TTFT 1, TPOT 0.1
                                              record(1, 0, 3, 4, 11),    // TTFT too long
                                              record(2, 0, 1, 10, 11)};  // TPOT 0.9, too long
  const Slo slo{.ttft = Seconds(2), .tpot = Seconds(0.5)};
  const ServingMetrics metrics = serving_metrics(records, {}, slo);
  EXPECT_DOUBLE_EQ(metrics.slo_attainment, 1.0 / 3);
  EXPECT_DOUBLE_EQ(metrics.goodput_requests_per_s, 0.1);  // one in 10 s
  EXPECT_DOUBLE_EQ(metrics.output_tokens_per_s, 3.3);
}

// Requests come every second and take five: one a second is served, though the last measured one
// finishes after 14 s, and 10 / 14 would be said without the drain.
TEST(Metrics, RatesWithADrainAreThoseOfAServiceThatStaysFull) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 14; ++i) records.push_back(record(i, i, i + 1, i + 5, 3));
  for (int i : {0, 1, 12, 13}) records[static_cast<std::size_t>(i)].is_measured = false;
  const ServingMetrics metrics = serving_metrics(records, {}, {});
  EXPECT_EQ(metrics.num_requests, 10);
  EXPECT_DOUBLE_EQ(metrics.requests_per_s, 1);
  EXPECT_DOUBLE_EQ(metrics.output_tokens_per_s, 3);
  EXPECT_DOUBLE_EQ(metrics.duration.value(), 14);  // 2 to 16
}

TEST(Metrics, WarmUpRequestsAreNotCounted) {
  std::vector<RequestRecord> records = {record(0, 0, 9, 10, 1000), record(1, 20, 21, 25, 5)};
  records[0].is_measured = false;
  records[0].num_preemptions = 34;
  const ServingMetrics metrics = serving_metrics(records, {}, {});
  EXPECT_EQ(metrics.num_requests, 1);
  EXPECT_EQ(metrics.output_tokens, 5);
  EXPECT_DOUBLE_EQ(metrics.duration.value(), 5);  // 20 to 25
  EXPECT_DOUBLE_EQ(metrics.ttft_s.max, 1);
  EXPECT_EQ(metrics.num_preemptions, 0);
}

}  // namespace
}  // namespace orrery

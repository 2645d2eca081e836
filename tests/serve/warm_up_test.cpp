// Requests of the warm-up are served and leave no trace in any figure.

#include <gtest/gtest.h>

#include <cstdint>

#include "sim/serve/workload.h"
#include "tests/serve/disaggregated_testing.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeTimes;
using testing::serve_fake;
using testing::small_service;
using testing::tight_service;

const FakeTimes kContextTimes{.per_context = Seconds(1e-5)};

// `num_warmup` requests at once, and after a pause `num_lone` ones far apart.
Workload burst_then_lone(std::int64_t num_warmup, std::int64_t num_lone) {
  Workload workload;
  workload.warmup_requests = num_warmup;
  for (std::int64_t id = 0; id < num_warmup + num_lone; ++id) {
    const double arrival = id < num_warmup ? 0 : 1000 + 10 * static_cast<double>(id - num_warmup);
    workload.requests.push_back(
        {.id = id, .arrival = Seconds(arrival), .prompt_tokens = 40, .output_tokens = 100});
  }
  return workload;
}

TEST(WarmUp, ABurstBeforeLoneRequestsIsInNoFigure) {
  const ServingMetrics found =
      serve_fake(burst_then_lone(200, 50), tight_service(), kContextTimes).metrics;
  EXPECT_EQ(found.num_requests, 50);
  EXPECT_EQ(found.num_preemptions, 0);
  // A lone request: a step with its prompt, 99 decodes of contexts 41 to 139 of 10 ms and 10 us for
  // each token of context, so ITL and TPOT are about the same.
  EXPECT_EQ(found.num_steps, 50 * 100);
  EXPECT_DOUBLE_EQ(found.mean_batch, 1);
  EXPECT_NEAR(found.itl_s.mean, found.tpot_s.mean, 1e-9);
  EXPECT_NEAR(found.itl_s.max, 0.010 + 139e-5, 1e-9);
  EXPECT_NEAR(found.itl_s.p99, found.tpot_s.p99, 0.05 * found.tpot_s.p99);
  EXPECT_NEAR(found.kv_utilisation_max, 35.0 / 80, 1e-12);  // 139 tokens in blocks of 4
}

TEST(WarmUp, FiguresAreThoseOfTheOtherRequestsAlone) {
  for (const bool is_async : {false, true}) {
    ServiceConfig config = tight_service();
    config.engine.async_scheduling = is_async;
    config.num_replicas = 2;
    const ServingMetrics found =
        serve_fake(burst_then_lone(200, 51), config, kContextTimes).metrics;
    const ServingMetrics alone = serve_fake(burst_then_lone(0, 51), config, kContextTimes).metrics;
    EXPECT_EQ(found.num_steps, alone.num_steps);
    EXPECT_EQ(found.num_preemptions, alone.num_preemptions);
    EXPECT_DOUBLE_EQ(found.mean_batch, alone.mean_batch);
    EXPECT_NEAR(found.itl_s.mean, alone.itl_s.mean, 1e-12);
    EXPECT_NEAR(found.itl_s.p50, alone.itl_s.p50, 1e-12);
    EXPECT_NEAR(found.itl_s.max, alone.itl_s.max, 1e-9);
    EXPECT_NEAR(found.kv_utilisation_mean, alone.kv_utilisation_mean, 1e-9);
    EXPECT_NEAR(found.kv_utilisation_max, alone.kv_utilisation_max, 1e-12);
    EXPECT_NEAR(found.basis.measured, alone.basis.measured, 1e-12);
    EXPECT_NEAR(found.duration.value(), alone.duration.value(), 1e-9);
  }
}

// A decode of a measured request beside one of the warm-up: the step counts, the other's token does
// not.
TEST(WarmUp, StepsCountThatComputeATokenOfAMeasuredRequest) {
  Workload workload;
  workload.warmup_requests = 1;
  workload.requests = {{.id = 0, .prompt_tokens = 4, .output_tokens = 1000},
                       {.id = 1, .arrival = Seconds(0.1), .prompt_tokens = 4, .output_tokens = 11}};
  const ServingMetrics found =
      serve_fake(workload, small_service(), {.per_prefill = Seconds(0)}).metrics;
  EXPECT_EQ(found.num_steps, 11);  // its prompt beside a decode, and ten decodes
  EXPECT_DOUBLE_EQ(found.mean_batch, 2);
  EXPECT_NEAR(found.itl_s.mean, 0.010, 1e-12);
  // Ten gaps: the histogram holds as many as the request has tokens after its first.
  EXPECT_NEAR(found.tpot_s.mean, found.itl_s.mean, 1e-12);
}

TEST(WarmUp, IsInNoFigureOfEitherSideWherePromptsAndDecodesAreApart) {
  const auto found =
      serve_fake(burst_then_lone(50, 10), testing::small_pair(2, 1), kContextTimes).metrics;
  const auto alone =
      serve_fake(burst_then_lone(0, 10), testing::small_pair(2, 1), kContextTimes).metrics;
  EXPECT_EQ(found.disaggregation->num_transfers, 10);
  EXPECT_NEAR(found.itl_s.mean, alone.itl_s.mean, 1e-9);
  for (const auto side : {&DisaggregationMetrics::prefill, &DisaggregationMetrics::decode}) {
    const SideMetrics& a = (*found.disaggregation).*side;
    const SideMetrics& b = (*alone.disaggregation).*side;
    EXPECT_NEAR(a.busy, b.busy, 1e-9);
    EXPECT_EQ(a.num_steps, b.num_steps);
    EXPECT_DOUBLE_EQ(a.mean_batch, b.mean_batch);
    EXPECT_NEAR(a.kv_utilisation_mean, b.kv_utilisation_mean, 1e-9);
  }
}

}  // namespace
}  // namespace orrery

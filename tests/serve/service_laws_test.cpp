// Laws that hold for any workload, on random ones; the seed is in the failure message.

#include <gtest/gtest.h>

#include <cmath>

#include "sim/serve/workload.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeTimes;
using testing::random_workload;
using testing::serve_fake;
using testing::small_service;
using testing::tight_service;

class ServiceLaws : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(ServiceLaws, EveryRequestGetsItsTokensInOrder) {
  const Workload workload = random_workload(GetParam(), 40);
  const auto result = serve_fake(workload, tight_service());
  std::int64_t tokens = 0;
  for (const RequestRecord& record : result.requests) {
    tokens += record.output_tokens;
    EXPECT_LE(record.arrival, record.first_scheduled);
    EXPECT_LT(record.first_scheduled, record.first_token);
    EXPECT_LE(record.first_token, record.finish);
  }
  EXPECT_EQ(tokens, result.metrics.output_tokens);
  EXPECT_GT(result.metrics.num_preemptions, 0) << "the workload is meant to be tight";
}

TEST_P(ServiceLaws, NoStepExceedsTheBudgetOrTheSequences) {
  std::vector<Batch> batches;
  serve_fake(random_workload(GetParam(), 40), tight_service(), {}, &batches);
  for (const Batch& batch : batches) {
    ASSERT_LE(num_tokens(batch), 64);
    ASSERT_LE(batch.num_decodes + static_cast<std::int64_t>(batch.prefill.size()), 8);
  }
}

TEST_P(ServiceLaws, BlocksStayWithinTheCacheAndReturn) {
  const auto result = serve_fake(random_workload(GetParam(), 40), tight_service());
  for (const StepRecord& step : result.steps) ASSERT_LE(step.kv_blocks_used, 80);
  EXPECT_LE(result.metrics.kv_utilisation_max, 1.0);
  // In the last step only its requests hold blocks: those of all others came back.
  const Seconds end = result.steps.back().start + result.steps.back().duration;
  std::int64_t blocks = 0;
  for (const RequestRecord& record : result.requests) {
    if (record.finish == end) blocks += (record.prompt_tokens + record.output_tokens - 1 + 3) / 4;
  }
  EXPECT_EQ(result.steps.back().kv_blocks_used, blocks);
}

TEST_P(ServiceLaws, FastForwardsAreEqualToSingleSteps) {
  const Workload workload = random_workload(GetParam(), 40);
  const FakeTimes times{.per_context = Seconds(1e-5)};
  FakeTimes single = times;
  single.fast_forwards = false;
  for (const int flags : {0, 1, 2, 3}) {
    ServiceConfig config = tight_service();
    config.engine.async_scheduling = (flags & 1) != 0;
    if ((flags & 2) != 0) {  // prompts of up to 150 tokens are cut on several ranks at once
      config.num_dp_ranks = 3;
      config.engine.max_num_batched_tokens = 24;
      config.num_kv_blocks = 3 * 70;
      config.engine.scheduler_reserve_full_isl = false;
    }
    const auto fast = serve_fake(workload, config, times);
    const auto steps = serve_fake(workload, config, single);
    for (std::size_t i = 0; i < fast.requests.size(); ++i) {
      const RequestRecord& a = fast.requests[i];
      const RequestRecord& b = steps.requests[i];
      ASSERT_NEAR(a.first_token.value(), b.first_token.value(), 1e-9) << "request " << i;
      ASSERT_NEAR(a.finish.value(), b.finish.value(), 1e-9) << "request " << i;
      ASSERT_EQ(a.num_preemptions, b.num_preemptions) << "request " << i;
    }
    EXPECT_EQ(fast.metrics.num_steps, steps.metrics.num_steps);
    EXPECT_LT(fast.steps.size(), steps.steps.size());
    EXPECT_NEAR(fast.metrics.itl_s.mean, steps.metrics.itl_s.mean, 1e-12);
    EXPECT_NEAR(fast.metrics.kv_utilisation_max, steps.metrics.kv_utilisation_max, 1e-12);
  }
}

TEST_P(ServiceLaws, FirstTokensComeInOrderOfArrivalWithoutPreemption) {
  const Workload workload = random_workload(GetParam(), 40);
  const auto result = serve_fake(workload, small_service());
  ASSERT_EQ(result.metrics.num_preemptions, 0);
  for (std::size_t i = 1; i < result.requests.size(); ++i) {
    ASSERT_LE(result.requests[i - 1].first_token, result.requests[i].first_token)
        << "request " << i;
  }
}

TEST_P(ServiceLaws, ThreadsDoNotChangeTheResult) {
  const Workload workload = random_workload(GetParam(), 40);
  ServiceConfig config = tight_service();
  config.num_replicas = 4;
  const auto one = serve_fake(workload, config);
  config.num_threads = 3;
  const auto three = serve_fake(workload, config);
  ASSERT_EQ(one.steps.size(), three.steps.size());
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    ASSERT_EQ(one.steps[i].start, three.steps[i].start);
    ASSERT_EQ(one.steps[i].replica, three.steps[i].replica);
  }
  for (std::size_t i = 0; i < one.requests.size(); ++i) {
    ASSERT_EQ(one.requests[i].finish, three.requests[i].finish);
  }
}

TEST_P(ServiceLaws, EveryRouterServesEveryRequest) {
  Workload workload = random_workload(GetParam(), 40);
  for (Request& request : workload.requests) {
    for (std::int64_t unit = 0; unit < request.prompt_tokens / 8; ++unit) {
      request.block_hashes.push_back(static_cast<std::uint64_t>(request.id % 7 * 1000 + unit));
    }
  }
  workload.hash_block_tokens = 8;
  ServiceConfig config = tight_service();
  config.num_replicas = 3;
  config.engine.enable_prefix_caching = true;
  for (const RouterKind router :
       {RouterKind::kRoundRobin, RouterKind::kLeastLoaded, RouterKind::kPrefixAware}) {
    config.router = router;
    const auto result = serve_fake(workload, config);
    EXPECT_EQ(result.metrics.num_requests, 300);
    for (const StepRecord& step : result.steps) ASSERT_LE(step.kv_blocks_used, 80);
    EXPECT_GT(result.metrics.cached_tokens, 0);
  }
}

TEST_P(ServiceLaws, AClosedLoopNeverHasMoreThanItsConcurrency) {
  Workload workload = random_workload(GetParam(), 40);
  workload.closed_loop_concurrency = 5;
  ServiceConfig config = small_service();
  config.num_replicas = 2;
  const auto result = serve_fake(workload, config);
  // Each request but the first five arrives exactly when an earlier one finishes.
  std::vector<double> finishes;
  finishes.reserve(result.requests.size());
  for (const RequestRecord& record : result.requests) finishes.push_back(record.finish.value());
  std::ranges::sort(finishes);
  for (std::size_t i = 5; i < result.requests.size(); ++i) {
    ASSERT_EQ(result.requests[i].arrival.value(), finishes[i - 5]);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ServiceLaws, ::testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace orrery

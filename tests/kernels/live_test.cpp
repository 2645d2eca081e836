// Serving against the clock: what serve() makes of the same step times, and how it ends early.

#include "kernels/serve/live.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/serve/executed_steps.h"
#include "sim/serve/workload.h"
#include "tests/kernels/fake_runner.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeRunner;
using testing::kVocabulary;
using testing::RepeatedSteps;
using testing::RunnerTimes;
using testing::small_service;
using testing::whole_history;

constexpr std::uint64_t kLiveSeed = 11;

// A service on fake runners, one for each replica.
struct Live {
  Live(const Workload& served, const ServiceConfig& given, RunnerTimes times)
      : workload(served), config(given) {
    for (int i = 0; i < config.num_replicas; ++i) {
      runners.push_back(std::make_unique<FakeRunner>(config.num_kv_blocks / config.num_dp_ranks,
                                                     config.engine.block_size, times,
                                                     config.num_dp_ranks));
    }
  }
  LiveResult run(const std::function<bool()>& is_stopped = {}, const Progress& progress = {}) {
    LiveSetup setup{.first = {.service = config,
                              .steps = {.num_kv_blocks = config.num_kv_blocks / config.num_dp_ranks,
                                        .num_dp_ranks = config.num_dp_ranks,
                                        .block_size = config.engine.block_size,
                                        .vocab_size = kVocabulary,
                                        .seed = kLiveSeed}}};
    for (const auto& runner : runners) setup.first.runners.push_back(runner.get());
    return serve_live(workload, setup, {}, clock, progress, is_stopped);
  }

  Workload workload;
  ServiceConfig config;
  LiveClock clock;
  std::vector<std::unique_ptr<FakeRunner>> runners;
};

// serve() with the same step times makes the same records, to rounding; returns the preemptions.
std::int64_t expect_as_simulated(const Workload& workload, const ServiceConfig& config) {
  Live live(workload, config, {.base = Seconds(0.001), .per_token = Seconds(1e-5)});
  const LiveResult result = live.run();
  EXPECT_TRUE(result.is_complete);
  EXPECT_FALSE(result.error);
  const ServiceResult expected = serve(workload, config, {}, [&](int replica) {
    return std::make_unique<RepeatedSteps>(result.service.steps, replica);
  });
  EXPECT_EQ(result.service.requests.size(), workload.requests.size());
  EXPECT_EQ(result.service.steps.size(), expected.steps.size());
  for (std::size_t i = 0; i < expected.requests.size(); ++i) {
    const RequestRecord& a = result.service.requests[i];
    const RequestRecord& b = expected.requests[i];
    EXPECT_NEAR(a.arrival.value(), b.arrival.value(), 1e-9) << "request " << i;
    EXPECT_NEAR(a.first_scheduled.value(), b.first_scheduled.value(), 1e-9) << "request " << i;
    EXPECT_NEAR(a.first_token.value(), b.first_token.value(), 1e-9) << "request " << i;
    EXPECT_NEAR(a.finish.value(), b.finish.value(), 1e-9) << "request " << i;
    EXPECT_EQ(a.num_preemptions, b.num_preemptions) << "request " << i;
    EXPECT_EQ(a.replica, b.replica) << "request " << i;
    EXPECT_EQ(a.dp_rank, b.dp_rank) << "request " << i;
  }
  return result.service.metrics.num_preemptions;
}

Workload open(std::int64_t num_requests, double rate) {
  return open_loop(rate, 1, num_requests, {.kind = LengthKind::kUniform, .min = 1, .max = 100},
                   {.kind = LengthKind::kUniform, .min = 1, .max = 40}, 3);
}

TEST(Live, AnOpenLoopIsWhatServeMakesOfTheSameSteps) {
  EXPECT_EQ(expect_as_simulated(open(60, 150), small_service()), 0);
}

TEST(Live, SoIsOneThatIsMostlyIdle) { expect_as_simulated(open(8, 20), small_service()); }

TEST(Live, SoIsAClosedLoop) {
  expect_as_simulated(closed_loop(6, 40, {.kind = LengthKind::kUniform, .min = 1, .max = 100},
                                  {.kind = LengthKind::kUniform, .min = 1, .max = 40}, 3),
                      small_service());
}

TEST(Live, SoAreAsynchronousStepsBehindAFrontEnd) {
  ServiceConfig config = small_service();
  config.engine.async_scheduling = true;
  config.front_end = {.per_request = Seconds(0.0011),
                      .per_prompt_token = Seconds(1e-5),
                      .per_output_token = Seconds(1e-5),
                      .stream_latency = Seconds(0.0007)};
  expect_as_simulated(open(40, 150), config);
}

TEST(Live, SoAreReplicasSideBySide) {
  ServiceConfig config = small_service();
  config.num_replicas = 2;
  expect_as_simulated(open(40, 200), config);
}

ServiceConfig of_ranks(int num_ranks, DpRouter router) {
  ServiceConfig config = small_service();
  config.num_dp_ranks = num_ranks;
  config.engine.dp_router = router;
  return config;
}

TEST(Live, SoAreDataParallelRanksOfAReplica) {
  for (const DpRouter router :
       {DpRouter::kRoundRobin, DpRouter::kLeastTokens, DpRouter::kLeastRequests}) {
    expect_as_simulated(open(40, 200), of_ranks(2, router));
  }
  ServiceConfig config = of_ranks(3, DpRouter::kLeastRequests);
  config.num_replicas = 2;
  config.engine.dp_balance_timeout_iters = 4;
  config.engine.dp_balance_batching_wait_iters = 2;
  expect_as_simulated(open(60, 300), config);
}

TEST(Live, EachRankKeepsItsOwnBlocksWhenRequestsArePreempted) {
  ServiceConfig config = of_ranks(2, DpRouter::kRoundRobin);
  config.num_kv_blocks = 80;  // 40 of 4 tokens on each rank
  Live live(open(60, 400), config, {.base = Seconds(0.0005)});
  const LiveResult result = live.run();
  EXPECT_GT(result.service.metrics.num_preemptions, 0);
  // GPUs do not tell how long they wait for each other: no figure is made of it.
  EXPECT_FALSE(result.service.metrics.ranks);
  for (const Request& request : live.workload.requests) {
    EXPECT_EQ(result.tokens[static_cast<std::size_t>(request.id)],
              whole_history(kLiveSeed, request));
  }
}

TEST(Live, SoIsPreemption) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = 40;  // of 4 tokens: one longest request and little more
  EXPECT_GT(expect_as_simulated(open(60, 400), config), 0);
}

TEST(Live, PreemptionLeavesEveryTokenAsItWas) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = 40;
  Live live(open(60, 400), config, {.base = Seconds(0.0005)});
  const LiveResult result = live.run();
  EXPECT_GT(result.service.metrics.num_preemptions, 0);
  for (const Request& request : live.workload.requests) {
    EXPECT_EQ(result.tokens[static_cast<std::size_t>(request.id)],
              whole_history(kLiveSeed, request));
  }
}

TEST(Live, LeastLoadedSpreadsABurst) {
  ServiceConfig config = small_service();
  config.num_replicas = 2;
  config.router = RouterKind::kLeastLoaded;
  Workload workload =
      closed_loop(8, 24, {.mean = 10, .min = 10, .max = 10}, {.mean = 4, .min = 4, .max = 4}, 1);
  Live live(workload, config, {.base = Seconds(0.001)});
  const LiveResult result = live.run();
  ASSERT_TRUE(result.is_complete);
  // The first eight are equal: four each.
  std::int64_t first = 0;
  for (std::size_t i = 0; i < 8; ++i) first += result.service.requests[i].replica == 0 ? 1 : 0;
  EXPECT_EQ(first, 4);
}

// Other programs on this host hold steps up, so the quickest is judged.
TEST(Live, AStepTakesLittleMoreThanItsRunner) {
  constexpr double kLimit = 0.05;
  const Seconds base(0.010);
  Live live(
      closed_loop(4, 8, {.mean = 10, .min = 10, .max = 10}, {.mean = 20, .min = 20, .max = 20}, 1),
      small_service(), {.base = base});
  double least = 1e9;
  for (const StepRecord& step : live.run().service.steps) {
    EXPECT_GE(step.duration, base);
    least = std::min(least, step.duration / base - 1);
  }
  EXPECT_LE(least, kLimit);
}

TEST(Live, StoppingKeepsWhatIsDone) {
  Live live(open(200, 500), small_service(), {.base = Seconds(0.002)});
  std::atomic<bool> stop = false;
  const LiveResult result = live.run([&] { return stop.load(); },
                                     [&](std::int64_t done, std::int64_t total) {
                                       EXPECT_EQ(total, 200);
                                       if (done >= 10) stop = true;
                                     });
  EXPECT_FALSE(result.is_complete);
  EXPECT_FALSE(result.error);
  EXPECT_GE(result.service.requests.size(), 10U);
  EXPECT_LT(result.service.requests.size(), 200U);
  EXPECT_FALSE(result.service.steps.empty());
  for (const RequestRecord& record : result.service.requests) {
    EXPECT_GT(record.finish, record.arrival);
    EXPECT_FALSE(result.tokens[static_cast<std::size_t>(record.id)].empty());
  }
  EXPECT_EQ(std::ranges::count_if(result.tokens, [](const auto& made) { return !made.empty(); }),
            std::ssize(result.service.requests));
}

TEST(Live, AFailingReplicaStopsTheOthersAndKeepsWhatIsDone) {
  ServiceConfig config = small_service();
  config.num_replicas = 2;
  Live live(open(400, 500), config, {.base = Seconds(0.002)});
  live.runners[1]->num_runs_before_failure = 50;
  const LiveResult result = live.run();
  EXPECT_FALSE(result.is_complete);
  EXPECT_FALSE(result.service.requests.empty());
  ASSERT_TRUE(result.error);
  try {
    std::rethrow_exception(result.error);
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1, op o_proj: lost");
  }
}

TEST(Live, WhatCannotBeServedIsRefusedBeforeAnythingRuns) {
  Workload long_prompt = {.requests = {{.prompt_tokens = 5000, .output_tokens = 1}}};
  Live live(long_prompt, small_service(), {});
  EXPECT_THROW(live.run(), std::invalid_argument);
  ServiceConfig config = small_service();
  config.engine.enable_prefix_caching = true;
  config.router = RouterKind::kPrefixAware;
  Live prefix(open(2, 10), config, {});
  prefix.workload.hash_block_tokens = 4;
  EXPECT_THROW(prefix.run(), std::invalid_argument);
  prefix.config.router = RouterKind::kRoundRobin;
  EXPECT_THROW(prefix.run(), std::invalid_argument);
  Live of_ranks_with_prefixes(open(2, 10), of_ranks(2, DpRouter::kRoundRobin), {});
  of_ranks_with_prefixes.config.engine.enable_prefix_caching = true;
  of_ranks_with_prefixes.workload.hash_block_tokens = 4;
  EXPECT_THROW(of_ranks_with_prefixes.run(), std::invalid_argument);
  Live lacking(open(2, 10), small_service(), {});
  lacking.runners.clear();
  EXPECT_THROW(lacking.run(), std::invalid_argument);
}

TEST(Live, AServiceWithoutRequestsEnds) {
  Live live({}, small_service(), {});
  EXPECT_TRUE(live.run().is_complete);
}

}  // namespace
}  // namespace orrery

// Replicas that come and go: the decision against a naive one, and laws of a service with it.

#include "sim/serve/autoscaler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "sim/serve/random.h"
#include "sim/serve/router.h"
#include "sim/serve/sessions.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace autoscaler_testing {

using testing::kTolerance;
using testing::serve_fake;
using testing::small_service;

AutoscalingConfig upto(int most, double target = 4) {
  return {.min_replicas = 1,
          .max_replicas = most,
          .metric = ScalingMetric::kInFlightRequests,
          .target = target,
          .interval = Seconds(1),
          .start_up = Seconds(2),
          .scale_down_delay = Seconds(5)};
}

// 4 of each replica: 9 ask for 3, at once. 1 asks for 1, once 3 was asked for more than 5 s before.
TEST(ScalingPolicy, GoesUpAtOnceAndDownAfterItsDelay) {
  ScalingPolicy policy(upto(8), 1);
  EXPECT_EQ(policy.desired(Seconds(1), 9, 1, 0), 3);
  EXPECT_EQ(policy.desired(Seconds(2), 1, 1, 2), 3);
  EXPECT_EQ(policy.desired(Seconds(6), 1, 3, 0), 3);  // asked for 5 s before
  EXPECT_EQ(policy.desired(Seconds(6.1), 1, 3, 0), 1);
}

TEST(ScalingPolicy, LeavesReplicasWhileTheMetricIsNearItsTarget) {
  ScalingPolicy policy(upto(8), 2);
  EXPECT_EQ(policy.desired(Seconds(1), 8.7, 2, 0), 2);  // 9 % above
  EXPECT_EQ(policy.desired(Seconds(2), 8.9, 2, 0), 3);
}

// 2 that are ready have 20: 5 are needed; with 3 that start there are 5.
TEST(ScalingPolicy, CountsReplicasThatStartAsIdle) {
  ScalingPolicy policy(upto(8), 2);
  EXPECT_EQ(policy.desired(Seconds(1), 20, 2, 3), 5);
  EXPECT_EQ(policy.desired(Seconds(2), 28, 2, 3), 7);
  EXPECT_EQ(policy.desired(Seconds(3), 10, 2, 3), 5);  // more than 2 can do: none goes
}

TEST(ScalingPolicy, StaysWithinItsLimits) {
  AutoscalingConfig config = upto(6);
  config.min_replicas = 2;
  config.scale_down_delay = Seconds(0);
  ScalingPolicy policy(config, 2);
  EXPECT_EQ(policy.desired(Seconds(1), 1e12, 2, 0), 6);
  EXPECT_EQ(policy.desired(Seconds(2), 0, 6, 0), 2);
}

// All recommendations are kept, and the most within the delay is looked for among them.
TEST(ScalingPolicy, DecidesAsOneThatKeepsEverything) {
  Random random(5);
  for (int round = 0; round < 50; ++round) {
    AutoscalingConfig config = upto(static_cast<int>(random.uniform_integer(2, 12)));
    config.scale_down_delay = Seconds(static_cast<double>(random.uniform_integer(0, 9)));
    int replicas = 1;
    ScalingPolicy policy(config, replicas);
    std::vector<std::pair<double, int>> all{{0, replicas}};
    for (int i = 1; i < 100; ++i) {
      const double sum = 50 * random.uniform() * std::abs(std::sin(i / 9.0));
      const bool is_near = std::abs(sum / replicas / config.target - 1) <= config.tolerance;
      const int asked =
          std::clamp(is_near ? replicas : static_cast<int>(std::ceil(sum / config.target)), 1,
                     config.max_replicas);
      all.emplace_back(i, asked);
      int most = 0;
      for (const auto& [time, recommended] : all) {
        if (time >= i - config.scale_down_delay.value()) most = std::max(most, recommended);
      }
      const int expected = asked >= replicas ? asked : std::min(most, replicas);
      ASSERT_EQ(policy.desired(Seconds(i), sum, replicas, 0), expected) << round << ", " << i;
      replicas = expected;
    }
  }
}

ServiceConfig scaled(const AutoscalingConfig& scaling, int at_start, RouterKind router) {
  ServiceConfig config = small_service();
  config.engine.block_size = 16;
  config.engine.enable_prefix_caching = true;
  config.num_kv_blocks = 400;
  config.engine.max_num_batched_tokens = 256;
  config.num_replicas = at_start;
  config.router = router;
  config.autoscaling = scaling;
  return config;
}

Workload chats(double sessions_per_s, std::int64_t num_sessions = 80) {
  const auto between = [](std::int64_t least, std::int64_t most) {
    return LengthDistribution{.kind = LengthKind::kUniform, .min = least, .max = most};
  };
  return draw_sessions({.sessions_per_s = sessions_per_s,
                        .num_sessions = num_sessions,
                        .turns = between(1, 6),
                        .first_prompt = between(20, 200),
                        .user_tokens = between(5, 60),
                        .output_tokens = between(5, 60),
                        .think_time = {.mean = Seconds(2), .cv = 1}},
                       9);
}

void expect_same(const ServiceResult& found, const ServiceResult& expected) {
  ASSERT_EQ(found.requests.size(), expected.requests.size());
  for (std::size_t i = 0; i < expected.requests.size(); ++i) {
    ASSERT_EQ(found.requests[i].replica, expected.requests[i].replica) << i;
    ASSERT_EQ(found.requests[i].first_token, expected.requests[i].first_token) << i;
    ASSERT_EQ(found.requests[i].finish, expected.requests[i].finish) << i;
    ASSERT_EQ(found.requests[i].cached_tokens, expected.requests[i].cached_tokens) << i;
  }
}

TEST(Autoscaler, AFixedNumberIsTheFixedDeployment) {
  const Workload workload = chats(2);
  for (const RouterPolicy& router : router_policies()) {
    AutoscalingConfig scaling = upto(3);
    scaling.min_replicas = 3;
    ServiceConfig config = scaled(scaling, 3, router.kind);
    const ServiceResult found = serve_fake(workload, config);
    config.autoscaling.reset();
    const ServiceResult expected = serve_fake(workload, config);
    expect_same(found, expected);
    EXPECT_EQ(found.metrics.autoscaling->counts.size(), 1U) << router.name;
    const Seconds end = std::ranges::max(expected.requests, {}, &RequestRecord::finish).finish;
    EXPECT_EQ(found.metrics.autoscaling->replica_time, end * 3);
    EXPECT_NEAR(found.metrics.busy * found.metrics.autoscaling->time.value(),
                expected.metrics.busy * end.value(), 1e-9);
  }
}

TEST(Autoscaler, ReplicasThatNeverStartServeNothing) {
  const Workload workload = chats(2);
  for (const RouterPolicy& router : router_policies()) {
    AutoscalingConfig scaling = upto(4, 0.5);
    scaling.start_up = Seconds(1e6);
    ServiceConfig config = scaled(scaling, 1, router.kind);
    const ServiceResult found = serve_fake(workload, config);
    EXPECT_EQ(found.metrics.autoscaling->most_replicas, 4);
    config.autoscaling.reset();
    expect_same(found, serve_fake(workload, config));
  }
}

// Everything that a service must keep to, whatever the router is.
TEST(Autoscaler, CountsEveryReplicaForAsLongAsItIsThere) {
  const Workload workload = chats(6, 300);
  for (const RouterPolicy& router : router_policies()) {
    for (const double start_up : {0.0, 3.0}) {
      AutoscalingConfig scaling = upto(6);
      scaling.start_up = Seconds(start_up);
      const ServiceResult result = serve_fake(workload, scaled(scaling, 1, router.kind));
      const AutoscalingMetrics& metrics = *result.metrics.autoscaling;
      EXPECT_GT(metrics.num_starts, 1) << router.name;
      EXPECT_GT(metrics.num_stops, 0) << router.name;
      double replica_time = 0;
      for (std::size_t i = 0; i < metrics.counts.size(); ++i) {
        const ReplicaCount& count = metrics.counts[i];
        const Seconds until =
            i + 1 < metrics.counts.size() ? metrics.counts[i + 1].time : metrics.time;
        EXPECT_GE(until, count.time);
        EXPECT_GE(count.ready, 1);
        EXPECT_LE(count.ready + count.starting + count.draining, 6);
        if (start_up == 0) {
          EXPECT_EQ(count.starting, 0);
        }
        replica_time +=
            (count.ready + count.starting + count.draining) * (until - count.time).value();
      }
      EXPECT_NEAR(metrics.replica_time.value(), replica_time, 1e-6 * replica_time);
      EXPECT_LE(metrics.mean_replicas(), metrics.most_replicas);
    }
  }
}

// 10 requests at 0 on one replica with 8 seats; each takes 0.010 s + 0.010 s a step, 1,000 tokens.
// The decision at 1 s sees 10 in flight: ceil(10 / 4) = 3. Two more start, ready at 3 s: of the
// requests at 2.5 and 3.5 s the first goes to replica 0, the second to replica 1, which is idle.
TEST(Autoscaler, AReplicaTakesRequestsOnceItHasStarted) {
  Workload workload;
  for (int i = 0; i < 12; ++i) {
    workload.requests.push_back({.id = i,
                                 .arrival = Seconds(i < 10 ? 0 : i - 7.5),
                                 .prompt_tokens = 10,
                                 .output_tokens = 1000});
  }
  const ServiceResult result = serve_fake(workload, scaled(upto(4), 1, RouterKind::kLeastLoaded),
                                          {.per_prefill = Seconds(0)});
  EXPECT_EQ(result.requests[10].replica, 0);
  EXPECT_EQ(result.requests[11].replica, 1);
  const std::vector<ReplicaCount>& counts = result.metrics.autoscaling->counts;
  ASSERT_GE(counts.size(), 3U);
  EXPECT_EQ(counts[0], (ReplicaCount{.ready = 1}));
  EXPECT_EQ(counts[1], (ReplicaCount{.time = Seconds(1), .ready = 1, .starting = 2}));
  EXPECT_EQ(counts[2], (ReplicaCount{.time = Seconds(3), .ready = 3}));
}

// Two replicas with one request each, until 10 s. The decisions see 2, a half of which is enough;
// that at 6 s finds that no more was asked for within 5 s. Replica 1 is as old as replica 0 and
// goes, with its request to serve.
TEST(Autoscaler, AReplicaThatGoesServesWhatItHas) {
  Workload workload;
  for (int i = 0; i < 3; ++i) {
    workload.requests.push_back(
        {.id = i, .arrival = Seconds(i < 2 ? 0 : 8), .prompt_tokens = 10, .output_tokens = 1000});
  }
  const ServiceResult result = serve_fake(workload, scaled(upto(2), 2, RouterKind::kLeastLoaded),
                                          {.per_prefill = Seconds(0)});
  EXPECT_EQ(result.requests[1].replica, 1);
  EXPECT_NEAR(result.requests[1].finish.value(), 10, 0.02);
  EXPECT_EQ(result.requests[2].replica, 0);  // replica 1 has less to do, and takes none
  const std::vector<ReplicaCount>& counts = result.metrics.autoscaling->counts;
  ASSERT_EQ(counts.size(), 3U);
  EXPECT_EQ(counts[1], (ReplicaCount{.time = Seconds(6), .ready = 1, .draining = 1}));
  EXPECT_EQ(counts[2], (ReplicaCount{.time = result.requests[1].finish, .ready = 1}));
  const Seconds end = result.requests[2].finish;
  EXPECT_NEAR(result.metrics.autoscaling->replica_time.value(),
              (end + result.requests[1].finish).value(), kTolerance);
}

// A replica that comes in the place of one that went has nothing in its prefix cache.
TEST(Autoscaler, AReplicaThatComesBackHasAnEmptyCache) {
  Workload workload;
  workload.hash_block_tokens = 64;
  const auto add = [&](double arrival, std::int64_t output, std::vector<std::uint64_t> hashes) {
    workload.requests.push_back({.id = std::ssize(workload.requests),
                                 .arrival = Seconds(arrival),
                                 .prompt_tokens = 130,
                                 .output_tokens = output,
                                 .block_hashes = std::move(hashes)});
  };
  add(0, 1000, {1, 2});  // on replica 0
  add(0, 1, {3, 4});     // on replica 1, which goes at 6 s
  for (int i = 0; i < 30; ++i) add(20, 500, {});
  add(24, 1, {3, 4});
  AutoscalingConfig scaling = upto(2);
  scaling.start_up = Seconds(0);
  const ServiceResult result = serve_fake(workload, scaled(scaling, 2, RouterKind::kLeastLoaded),
                                          {.per_prefill = Seconds(0)});
  EXPECT_EQ(result.requests[1].replica, 1);
  EXPECT_EQ(result.requests.back().replica, 1);
  EXPECT_EQ(result.requests.back().cached_tokens, 0);
  EXPECT_EQ(result.metrics.autoscaling->num_starts, 1);
}

TEST(Autoscaler, RefusesWhatItDoesNotGoWith) {
  const Workload workload = chats(2, 5);
  const auto refuses = [&](const auto& change) {
    ServiceConfig config = scaled(upto(4), 1, RouterKind::kRoundRobin);
    Workload changed = workload;
    change(config, changed);
    EXPECT_THROW(serve_fake(changed, config), std::invalid_argument);
  };
  refuses([](ServiceConfig& config, Workload&) { config.num_replicas = 5; });
  refuses([](ServiceConfig& config, Workload&) { config.autoscaling->min_replicas = 2; });
  refuses([](ServiceConfig& config, Workload&) { config.autoscaling->target = 0; });
  refuses([](ServiceConfig& config, Workload&) { config.autoscaling->interval = Seconds(0); });
  refuses([](ServiceConfig& config, Workload&) { config.autoscaling->start_up = Seconds(-1); });
  refuses([](ServiceConfig&, Workload& requests) { requests.is_offline = true; });
  refuses([](ServiceConfig& config, Workload&) {
    config.kv_tiers.tiers.push_back({.name = "host",
                                     .capacity = Bytes(1e12),
                                     .bandwidth = BytesPerSecond(1e9),
                                     .write_bandwidth = BytesPerSecond(1e9)});
  });
}

}  // namespace autoscaler_testing
}  // namespace orrery

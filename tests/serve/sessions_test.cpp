// Sessions: what turns hold and when they are sent, against hand-computed cases and laws.

#include "sim/serve/sessions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "sim/serve/router.h"
#include "tests/serve/disaggregated_testing.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace sessions_testing {

using testing::FakeTimes;
using testing::kTolerance;
using testing::serve_fake;
using testing::small_service;

LengthDistribution always(std::int64_t tokens) {
  return {.mean = static_cast<double>(tokens), .min = tokens, .max = tokens};
}

LengthDistribution between(std::int64_t least, std::int64_t most) {
  return {.kind = LengthKind::kUniform, .min = least, .max = most};
}

SessionConfig chats() {
  return {.sessions_per_s = 2,
          .num_sessions = 60,
          .turns = between(1, 8),
          .first_prompt = between(40, 300),
          .user_tokens = between(5, 90),
          .output_tokens = between(1, 70),
          .think_time = {.mean = Seconds(1.5), .cv = 1},
          .shared_system_prompt = 200};
}

ServiceConfig caching_service(int num_replicas = 1, RouterKind router = RouterKind::kRoundRobin) {
  ServiceConfig config = small_service();
  config.engine.enable_prefix_caching = true;
  config.engine.block_size = 16;
  config.engine.max_num_batched_tokens = 512;
  config.num_kv_blocks = 400;
  config.num_replicas = num_replicas;
  config.router = router;
  return config;
}

TEST(Sessions, ATurnHoldsTheWholeConversationBeforeIt) {
  const Workload workload = draw_sessions(chats(), 7);
  std::set<std::uint64_t> shared;
  std::set<std::uint64_t> own;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    const std::int64_t whole = request.prompt_tokens + request.output_tokens;
    EXPECT_EQ(std::ssize(request.block_hashes), whole / 64);
    if (workload.turns[i].turn > 0) {
      const Request& before = workload.requests[i - 1];
      const std::int64_t added =
          request.prompt_tokens - before.prompt_tokens - before.output_tokens;
      EXPECT_GE(added, 5);
      EXPECT_LE(added, 90);
      EXPECT_TRUE(std::ranges::equal(
          before.block_hashes, std::span(request.block_hashes).first(before.block_hashes.size())));
    } else {
      EXPECT_GE(request.prompt_tokens, 200 + 40);
      shared.insert(request.block_hashes.begin(), request.block_hashes.begin() + 3);
      // 200 = 3 blocks of 64 and 8 tokens: what follows is the session's own.
      for (std::size_t k = 3; k < request.block_hashes.size(); ++k) {
        EXPECT_TRUE(own.insert(request.block_hashes[k]).second);
      }
    }
  }
  EXPECT_EQ(shared.size(), 3U);
  EXPECT_EQ(workload.turns.back().session, 59);
}

TEST(Sessions, EndBeforeTheirContextIsTooLong) {
  SessionConfig config = chats();
  config.turns = always(50);
  config.max_context = 900;
  const Workload workload = draw_sessions(config, 3);
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    EXPECT_LE(request.prompt_tokens + request.output_tokens, 900);
  }
  EXPECT_LT(std::ssize(workload.requests), 60 * 50);
  config.max_context = 100;
  EXPECT_THROW(draw_sessions(config, 3), std::invalid_argument);
}

// A step takes 10 ms and 1 ms for each prompt token. First turn: 64 tokens, then 64 decode steps:
// 0.074 s and 0.714 s. 64 + 65 - 1 = 128 tokens are computed by then, two blocks of 64. The second
// turn has 64 + 65 + 20 = 149 prompt tokens, of which 21 are computed: 0.031 s.
TEST(Sessions, TheNextTurnFindsThePromptAndTheAnswerBefore) {
  const SessionConfig one{.concurrency = 1,
                          .num_sessions = 1,
                          .turns = always(2),
                          .first_prompt = always(64),
                          .user_tokens = always(20),
                          .output_tokens = always(65),
                          .think_time = {.mean = Seconds(2)}};
  const ServiceResult result = serve_fake(draw_sessions(one, 1), caching_service());
  const RequestRecord& first = result.requests[0];
  const RequestRecord& second = result.requests[1];
  EXPECT_NEAR(first.first_token.value(), 0.074, kTolerance);
  EXPECT_NEAR(first.finish.value(), 0.714, kTolerance);
  EXPECT_NEAR(second.arrival.value(), 2.714, kTolerance);
  EXPECT_EQ(second.cached_tokens, 128);
  EXPECT_NEAR(second.first_token.value(), 2.714 + 0.031, kTolerance);
  EXPECT_NEAR(second.finish.value(), 2.745 + 0.64, kTolerance);
  const SessionMetrics& metrics = *result.metrics.sessions;
  EXPECT_EQ(metrics.num_sessions, 1);
  EXPECT_NEAR(metrics.duration_s.mean, 3.385, kTolerance);
  EXPECT_NEAR(metrics.first_ttft_s.mean, 0.074, kTolerance);
  EXPECT_NEAR(metrics.later_ttft_s.mean, 0.031, kTolerance);
  EXPECT_NEAR(metrics.later_cached_share, 128.0 / 149, kTolerance);
}

TEST(Sessions, EachTurnIsSentWhenItsUserHasReadTheAnswerBefore) {
  for (const bool is_async : {false, true}) {
    ServiceConfig config = caching_service(3, RouterKind::kLeastLoaded);
    config.engine.async_scheduling = is_async;
    config.front_end.stream_latency = Seconds(0.02);
    const Workload workload = draw_sessions(chats(), 11);
    const ServiceResult result = serve_fake(workload, config);
    for (std::size_t i = 0; i < workload.requests.size(); ++i) {
      const Seconds expected = workload.turns[i].turn == 0
                                   ? workload.requests[i].arrival
                                   : result.requests[i - 1].finish + workload.turns[i].wait;
      EXPECT_EQ(result.requests[i].arrival, expected) << i;
    }
  }
}

TEST(Sessions, AUserBeginsTheNextSessionWhenOneHasEnded) {
  SessionConfig config = chats();
  config.sessions_per_s = 0;
  config.concurrency = 4;
  const Workload workload = draw_sessions(config, 5);
  const ServiceResult result = serve_fake(workload, caching_service());
  std::multiset<double> starts;
  std::multiset<double> ends;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const bool is_last = i + 1 == workload.turns.size() || workload.turns[i + 1].turn == 0;
    if (workload.turns[i].turn == 0) starts.insert(result.requests[i].arrival.value());
    if (is_last) ends.insert(result.requests[i].finish.value());
  }
  std::multiset<double> expected{0, 0, 0, 0};
  for (const double end : ends) {
    if (expected.size() < starts.size()) expected.insert(end);
  }
  EXPECT_EQ(starts, expected);
}

TEST(Sessions, WithoutAPrefixCacheNothingIsFound) {
  ServiceConfig config = caching_service();
  config.engine.enable_prefix_caching = false;
  const ServiceResult result = serve_fake(draw_sessions(chats(), 2), config);
  EXPECT_EQ(result.metrics.cached_tokens, 0);
  EXPECT_EQ(result.metrics.sessions->num_sessions, 60);
}

// Prefill replicas never see the answers: 64 of the 149 tokens are found, those of the prompt.
TEST(Sessions, PrefillReplicasFindPromptsAlone) {
  const SessionConfig one{.concurrency = 1,
                          .num_sessions = 1,
                          .turns = always(2),
                          .first_prompt = always(64),
                          .user_tokens = always(20),
                          .output_tokens = always(65)};
  DisaggregatedConfig config = testing::small_pair();
  config.prefill.engine = config.decode.engine = caching_service().engine;
  config.prefill.num_kv_blocks = config.decode.num_kv_blocks = 400;
  const ServiceResult result = serve_fake(draw_sessions(one, 1), config);
  EXPECT_EQ(result.requests[1].cached_tokens, 64);
  EXPECT_GE(result.requests[1].arrival, result.requests[0].finish);
}

TEST(Sessions, AWarmUpLeavesOutSessionsThatBeginInIt) {
  Workload workload = draw_sessions(chats(), 4);
  workload.warmup_requests = 1;
  const auto behind =
      std::ranges::find_if(workload.turns, [](const Turn& turn) { return turn.session == 1; });
  const auto in_first = behind - workload.turns.begin();
  const ServiceResult result = serve_fake(workload, caching_service());
  EXPECT_EQ(result.metrics.sessions->num_sessions, 59);
  EXPECT_EQ(result.metrics.num_requests, std::ssize(workload.requests) - 1);
  EXPECT_GE(in_first, 1);
}

// --- routers

struct Hits {
  double share = 0;
  std::map<std::int64_t, std::set<int>> replicas;  // of each session
};

Hits hits_of(RouterKind router, std::uint64_t seed) {
  SessionConfig config = chats();
  config.sessions_per_s = 4;
  const ServiceResult result = serve_fake(draw_sessions(config, seed), caching_service(4, router),
                                          {.base = Seconds(0.004), .per_prefill = Seconds(1e-4)});
  Hits hits{.share = result.metrics.sessions->later_cached_share};
  for (const RequestRecord& record : result.requests) {
    hits.replicas[record.session].insert(record.replica);
  }
  return hits;
}

TEST(Sessions, AffinityKeepsAllTurnsOfASessionOnOneReplica) {
  const Hits hits = hits_of(RouterKind::kSessionAffinity, 21);
  std::set<int> all;
  for (const auto& [session, replicas] : hits.replicas) {
    EXPECT_EQ(replicas.size(), 1U) << session;
    all.insert(*replicas.begin());
  }
  EXPECT_EQ(all.size(), 4U);
}

TEST(Sessions, RoutersThatKnowPrefixesOrSessionsFindMoreThanThoseThatTakeTurns) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const double in_turn = hits_of(RouterKind::kRoundRobin, seed).share;
    // All sessions begin alike, so prefix_aware sends most of them to one replica, which evicts.
    EXPECT_GT(hits_of(RouterKind::kPrefixAware, seed).share, in_turn) << "seed " << seed;
    for (const RouterKind router :
         {RouterKind::kSessionAffinity, RouterKind::kCacheAware, RouterKind::kWeightedScores}) {
      EXPECT_GT(hits_of(router, seed).share, in_turn + 0.1) << to_text(router) << ", seed " << seed;
    }
  }
}

// One replica has the prefix of what comes and 70 requests more than the other, far more than half
// as many again: the idle one takes it, and with 60 more the one with the prefix.
TEST(Sessions, CacheAwareGivesUpAPrefixWhenRequestsAreOutOfBalance) {
  for (const int num_before : {60, 70}) {
    Workload workload;
    workload.hash_block_tokens = 64;
    for (int i = 0; i <= num_before; ++i) {
      workload.requests.push_back({.id = i,
                                   .arrival = Seconds(0.001 * i),
                                   .prompt_tokens = 130,
                                   .output_tokens = 500,
                                   .block_hashes = {1, 2}});
    }
    // The first goes to replica 0, which has it in the cache when the second one comes.
    ServiceConfig config = caching_service(2, RouterKind::kCacheAware);
    config.num_kv_blocks = 10000;
    const ServiceResult result =
        serve_fake(workload, config, {.base = Seconds(0.01), .per_prefill = Seconds(0)});
    const auto on_first = std::ranges::count(result.requests, 0, &RequestRecord::replica);
    EXPECT_EQ(on_first, std::min(num_before + 1, 65)) << num_before;
  }
}

TEST(Sessions, RoutersThatNeedThemRefuseOtherRequests) {
  const Workload alone = testing::random_workload(1, 5);
  ServiceConfig config = caching_service(2, RouterKind::kSessionAffinity);
  EXPECT_THROW(serve_fake(alone, config), std::invalid_argument);
  config.router = RouterKind::kWeightedScores;
  config.engine.enable_prefix_caching = false;
  EXPECT_THROW(serve_fake(alone, config), std::invalid_argument);
}

// --- traces

TEST(Sessions, RowsOfATraceBecomeTurns) {
  Workload workload = testing::workload_of(
      {{.arrival = Seconds(0), .prompt_tokens = 100, .output_tokens = 30},
       {.arrival = Seconds(1), .prompt_tokens = 80, .output_tokens = 10},
       {.arrival = Seconds(2), .prompt_tokens = 150, .output_tokens = 60},   // holds 100 + 30
       {.arrival = Seconds(3), .prompt_tokens = 170, .output_tokens = 60},   // holds 150 alone
       {.arrival = Seconds(4), .prompt_tokens = 128, .output_tokens = 1}});  // holds nothing
  const std::vector<std::string> sessions{"a", "b", "a", "a", "a"};
  group_sessions(workload, sessions, {});
  const std::vector<Request>& requests = workload.requests;
  ASSERT_EQ(requests.size(), 5U);
  EXPECT_EQ(requests[1].prompt_tokens, 150);
  EXPECT_EQ(requests[4].prompt_tokens, 80);
  EXPECT_EQ(workload.turns[3], (Turn{.session = 0, .turn = 3}));
  EXPECT_EQ(workload.turns[4], (Turn{.session = 1, .turn = 0}));
  const auto in_common = [&](std::size_t a, std::size_t b) {
    const auto& one = requests[a].block_hashes;
    const auto& other = requests[b].block_hashes;
    return std::ranges::mismatch(one, other).in1 - one.begin();
  };
  EXPECT_EQ(in_common(0, 1), 130 / 64);
  EXPECT_EQ(in_common(1, 2), 150 / 64);
  EXPECT_EQ(in_common(2, 3), 0);
  EXPECT_EQ(in_common(0, 4), 0);
  // Without waits they come at their arrivals, or when the answer before is there.
  const ServiceResult result = serve_fake(workload, caching_service());
  EXPECT_NEAR(result.requests[1].arrival.value(), 2, kTolerance);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(result.requests[i].arrival,
              std::max(requests[i].arrival, result.requests[i - 1].finish));
  }
}

TEST(Sessions, WaitsOfATraceStandInForArrivals) {
  Workload workload =
      testing::workload_of({{.arrival = Seconds(5), .prompt_tokens = 100, .output_tokens = 3},
                            {.arrival = Seconds(900), .prompt_tokens = 150, .output_tokens = 3}});
  group_sessions(workload, std::vector<std::string>{"x", "x"}, std::vector<double>{0, 0.25});
  const ServiceResult result = serve_fake(workload, caching_service());
  EXPECT_EQ(result.requests[1].arrival, result.requests[0].finish + Seconds(0.25));
  EXPECT_THROW(group_sessions(workload, std::vector<std::string>{"x"}, {}), std::invalid_argument);
  EXPECT_THROW(
      group_sessions(workload, std::vector<std::string>{"x", "y"}, std::vector<double>{0, -1}),
      std::invalid_argument);
}

TEST(Sessions, AreRefusedWithTurnsOutOfOrder) {
  Workload workload = draw_sessions(chats(), 1);
  const auto later = std::ranges::find(workload.turns, 1, &Turn::turn);
  later->turn = 2;
  EXPECT_THROW(serve_fake(workload, caching_service()), std::invalid_argument);
  later->turn = 1;
  later->wait = Seconds(-1);
  EXPECT_THROW(serve_fake(workload, caching_service()), std::invalid_argument);
  workload.turns.pop_back();
  EXPECT_THROW(serve_fake(workload, caching_service()), std::invalid_argument);
}

}  // namespace sessions_testing
}  // namespace orrery

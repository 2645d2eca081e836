// The fast replica against the naive one on random workloads: same schedule, same times.

#include "tests/serve/naive_replica.h"

#include <gtest/gtest.h>

#include <string>

#include "sim/serve/workload.h"
#include "tests/share.h"

namespace orrery {
namespace {

using testing::FakeTimes;
using testing::NaiveReplica;
using testing::serve_fake;
using testing::small_service;

constexpr std::int64_t kNumSeeds = 8;

// Prompts of up to 150 tokens; those of equal id modulo 7 share their content.
Workload shared_workload(std::uint64_t seed, std::int64_t block_size) {
  Workload workload = open_loop(40, 1.5, 200, {.kind = LengthKind::kUniform, .min = 1, .max = 150},
                                lognormal_of_mean_cv(20, 1, 1, 120), seed);
  workload.hash_block_tokens = block_size;
  for (Request& request : workload.requests) {
    for (std::int64_t unit = 0; unit < request.prompt_tokens / block_size; ++unit) {
      request.block_hashes.push_back(static_cast<std::uint64_t>(request.id % 7 * 1000 + unit));
    }
  }
  return workload;
}

// Returns (preemptions, cached tokens), so that callers can see that the case is not an easy one.
std::pair<std::int64_t, std::int64_t> expect_equal(const ServiceConfig& config) {
  // Times without a common divisor: no step ends by chance when a request arrives.
  const FakeTimes times{.base = Seconds(0.0101),
                        .per_prefill = Seconds(0.00100737),
                        .per_context = Seconds(1.0123e-5)};
  std::int64_t num_preemptions = 0;
  std::int64_t num_cached = 0;
  for (std::int64_t seed = 1; seed <= kNumSeeds / testing::one_in(4); ++seed) {
    const Workload workload =
        shared_workload(static_cast<std::uint64_t>(seed), config.engine.block_size);
    const auto fast = serve_fake(workload, config, times);
    NaiveReplica naive(workload, config, times);
    const std::vector<RequestRecord> slow = naive.run();
    EXPECT_EQ(naive.num_free(), config.num_kv_blocks);
    for (std::size_t i = 0; i < slow.size(); ++i) {
      const RequestRecord& a = fast.requests[i];
      const RequestRecord& b = slow[i];
      const bool is_equal = std::abs((a.first_scheduled - b.first_scheduled).value()) < 1e-9 &&
                            std::abs((a.first_token - b.first_token).value()) < 1e-9 &&
                            std::abs((a.finish - b.finish).value()) < 1e-9 &&
                            a.num_preemptions == b.num_preemptions &&
                            a.cached_tokens == b.cached_tokens;
      EXPECT_TRUE(is_equal) << "seed " << seed << " request " << i << " finish " << a.finish.value()
                            << " against " << b.finish.value();
      if (!is_equal) return {};
      num_preemptions += b.num_preemptions;
      num_cached += b.cached_tokens;
    }
  }
  return {num_preemptions, num_cached};
}

// 70 blocks of 4 tokens hold one longest request and little more; 1000 hold all.
class NaiveReplicaTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  static ServiceConfig config() {
    ServiceConfig config = small_service();
    config.num_kv_blocks = GetParam();
    return config;
  }
};

TEST_P(NaiveReplicaTest, ChunkedPrefillIsScheduledAlike) {
  const auto [preemptions, cached] = expect_equal(config());
  EXPECT_EQ(preemptions > 0, GetParam() < 1000);
  EXPECT_EQ(cached, 0);
}

TEST_P(NaiveReplicaTest, WholePromptsAreScheduledAlike) {
  ServiceConfig whole = config();
  whole.engine.enable_chunked_prefill = false;
  whole.engine.max_num_batched_tokens = 300;
  expect_equal(whole);
}

TEST_P(NaiveReplicaTest, PromptsBeyondALimitAreKeptOutAlike) {
  for (const std::int64_t limit : {1, 40, 200}) {
    for (const bool is_async : {false, true}) {
      ServiceConfig limited = config();
      limited.engine.max_prefill_tokens = limit;
      limited.engine.async_scheduling = is_async;
      expect_equal(limited);
      limited.engine.scheduler_policy = SchedulerPolicy::kPrefillFirst;
      expect_equal(limited);
    }
  }
}

TEST_P(NaiveReplicaTest, AdmissionByTheFirstChunkIsScheduledAlike) {
  ServiceConfig eager = config();
  eager.engine.scheduler_reserve_full_isl = false;
  expect_equal(eager);
}

TEST_P(NaiveReplicaTest, ThePrefixCacheHoldsAndForgetsAlike) {
  ServiceConfig caching = config();
  caching.engine.enable_prefix_caching = true;
  const auto [preemptions, cached] = expect_equal(caching);
  EXPECT_GT(cached, 0);
  caching.engine.scheduler_reserve_full_isl = false;
  expect_equal(caching);
}

// Tiers behind the blocks, each with either policy, that move whatever they hold in no time.
TEST_P(NaiveReplicaTest, TiersHoldAndGiveBackAlike) {
  constexpr Bytes kBlock(1000);
  for (const int flags : {0, 1, 2, 3, 4, 8, 15}) {
    SCOPED_TRACE("flags " + std::to_string(flags));
    ServiceConfig tiered = config();
    tiered.engine.enable_prefix_caching = true;
    tiered.engine.async_scheduling = (flags & 1) != 0;
    tiered.engine.scheduler_reserve_full_isl = (flags & 2) != 0;
    const auto tier = [&](const char* name, double blocks, bool is_through) {
      return KvTier{.name = name,
                    .capacity = kBlock * blocks,
                    .bandwidth = BytesPerSecond(1e30),
                    .write_bandwidth = BytesPerSecond(1e30),
                    .write = is_through ? TierWrite::kThrough : TierWrite::kEviction};
    };
    tiered.kv_tiers = {
        .tiers = {tier("host", 40, (flags & 4) != 0), tier("disk", 90, (flags & 8) != 0)},
        .block_of_gpu = kBlock,
        .block = kBlock};
    const auto [preemptions, cached] = expect_equal(tiered);
    ServiceConfig plain = tiered;
    plain.kv_tiers = {};
    EXPECT_GE(cached, expect_equal(plain).second);
  }
}

TEST_P(NaiveReplicaTest, AsynchronousStepsAreScheduledAlike) {
  ServiceConfig async = config();
  async.engine.async_scheduling = true;
  const auto [preemptions, cached] = expect_equal(async);
  EXPECT_EQ(preemptions > 0, GetParam() < 1000);
  async.engine.enable_prefix_caching = true;
  EXPECT_GT(expect_equal(async).second, 0);
}

TEST_P(NaiveReplicaTest, RequestsPassTheFrontEndAlike) {
  for (const bool is_async : {false, true}) {
    ServiceConfig front = config();
    front.engine.async_scheduling = is_async;
    front.front_end = {.per_request = Seconds(0.00213),
                       .per_prompt_token = Seconds(1.017e-4),
                       .stream_latency = Seconds(0.00371)};
    expect_equal(front);
  }
}

// Slower than most steps, so that tokens queue; and several in a message.
TEST_P(NaiveReplicaTest, TokensAreStreamedAlike) {
  for (const std::int64_t interval : {1, 7}) {
    for (const double per_token : {0.0, 0.00131, 0.0123}) {
      ServiceConfig streaming = config();
      streaming.engine.async_scheduling = interval == 7;
      streaming.engine.stream_interval = interval;
      streaming.front_end = {.per_output_token = Seconds(per_token),
                             .stream_latency = Seconds(0.00371)};
      expect_equal(streaming);
    }
  }
}

// Every policy with every admission, synchronous and not, with and without the prefix cache.
TEST_P(NaiveReplicaTest, EveryPolicyIsScheduledAlike) {
  for (const SchedulerPolicy policy : {SchedulerPolicy::kMixed, SchedulerPolicy::kPrefillFirst}) {
    for (const KvAdmission admission :
         {KvAdmission::kPrompt, KvAdmission::kFullLength, KvAdmission::kEstimated}) {
      for (const int flags : {0, 1, 2, 3}) {
        SCOPED_TRACE("policy " + std::to_string(static_cast<int>(policy)) + " admission " +
                     std::to_string(static_cast<int>(admission)) + " flags " +
                     std::to_string(flags));
        ServiceConfig chosen = config();
        chosen.engine.scheduler_policy = policy;
        chosen.engine.kv_admission = admission;
        chosen.engine.new_token_ratio = admission == KvAdmission::kEstimated ? 0.3 : 0;
        chosen.engine.async_scheduling = (flags & 1) != 0;
        chosen.engine.enable_prefix_caching = (flags & 2) != 0;
        const auto [preemptions, cached] = expect_equal(chosen);
        if (admission == KvAdmission::kFullLength) {
          EXPECT_EQ(preemptions, 0);
        }
        if (GetParam() == 70 && admission == KvAdmission::kPrompt) {
          EXPECT_GT(preemptions, 0);
        }
      }
    }
  }
}

// Ranks with queues and blocks of their own, however requests are dealt and whether they wait for
// each other's prompts.
TEST_P(NaiveReplicaTest, DataParallelRanksAreScheduledAlike) {
  for (const DpRouter router :
       {DpRouter::kRoundRobin, DpRouter::kLeastTokens, DpRouter::kLeastRequests}) {
    for (const int flags : {0, 1, 2, 3, 4, 5}) {
      SCOPED_TRACE("router " + std::to_string(static_cast<int>(router)) + " flags " +
                   std::to_string(flags));
      ServiceConfig ranks = config();
      ranks.num_dp_ranks = 3;
      ranks.num_kv_blocks = 3 * GetParam();
      ranks.engine.max_num_seqs = 4;
      ranks.engine.dp_router = router;
      ranks.engine.async_scheduling = (flags & 1) != 0;
      ranks.engine.enable_prefix_caching = (flags & 2) != 0;
      if ((flags & 4) != 0) {
        ranks.engine.dp_balance_timeout_iters = 6;
        ranks.engine.dp_balance_batching_wait_iters = 2;
        ranks.engine.scheduler_policy = SchedulerPolicy::kPrefillFirst;
      }
      expect_equal(ranks);
    }
  }
}

// Drafts take tokens of the budget and blocks of the cache whether they are accepted or not.
TEST_P(NaiveReplicaTest, DraftsAreVerifiedAlike) {
  for (const std::int64_t num_drafts : {1, 3}) {
    for (const int flags : {0, 3, 4, 8, 16, 31}) {
      SCOPED_TRACE("drafts " + std::to_string(num_drafts) + " flags " + std::to_string(flags));
      ServiceConfig drafting = config();
      EngineConfig& engine = drafting.engine;
      engine.speculation = {.num_tokens = num_drafts, .acceptance = {0.8}, .seed = 7};
      if (num_drafts == 3) engine.speculation.acceptance = {0.9, 0.5, 0.7};
      drafting.num_kv_blocks += 10;
      engine.async_scheduling = (flags & 1) != 0;
      engine.enable_prefix_caching = (flags & 2) != 0;
      if ((flags & 4) != 0) engine.scheduler_policy = SchedulerPolicy::kPrefillFirst;
      if ((flags & 8) != 0) {
        drafting.front_end = {.per_output_token = Seconds(0.00131),
                              .stream_latency = Seconds(0.00371)};
      }
      if ((flags & 16) != 0) {
        drafting.num_dp_ranks = 2;
        drafting.num_kv_blocks *= 2;
        engine.dp_router = DpRouter::kLeastTokens;
      }
      const auto [preemptions, cached] = expect_equal(drafting);
      if (GetParam() == 70 && (flags & 16) == 0) {
        EXPECT_GT(preemptions, 0);
      }
      for (const KvAdmission admission : {KvAdmission::kFullLength, KvAdmission::kEstimated}) {
        if (flags > 3) continue;
        ServiceConfig other = drafting;
        other.engine.kv_admission = admission;
        other.engine.new_token_ratio = 0.3;
        const auto [again, hits] = expect_equal(other);
        if (admission == KvAdmission::kFullLength) {
          EXPECT_EQ(again, 0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, NaiveReplicaTest, ::testing::Values(70, 90, 150, 1000));

}  // namespace
}  // namespace orrery

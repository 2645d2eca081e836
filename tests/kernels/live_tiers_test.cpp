// Prefixes that are found on the GPU and on the host, served against the clock.

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/serve/live.h"
#include "tests/kernels/fake_host.h"
#include "tests/kernels/tiered_service.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::CopyTiming;
using testing::FakeHost;
using testing::kBlockBytes;
using testing::kPromptSeed;
using testing::kUnitTokens;
using testing::kVocabulary;
using testing::RepeatedSteps;
using testing::shared_prompts;
using testing::tiered;
using testing::whole_history;

struct TieredLive {
  TieredLive(const Workload& served, const ServiceConfig& given, CopyTiming timing,
             Seconds base = Seconds(0))
      : workload(served),
        config(given),
        host({.num_blocks = given.num_kv_blocks,
              .block_size = given.engine.block_size,
              .blocks_per_unit = kUnitTokens / given.engine.block_size,
              .overlap = given.kv_tiers.overlap,
              .timing = timing,
              .times = {.base = base}}) {}
  LiveResult run() {
    LiveSetup setup{
        .first = {.service = config,
                  .steps = {.num_kv_blocks = config.num_kv_blocks,
                            .block_size = config.engine.block_size,
                            .vocab_size = kVocabulary,
                            .seed = kPromptSeed,
                            .hash_block_tokens = workload.hash_block_tokens,
                            .caches_prefixes = caches_prefixes(config.engine, workload)},
                  .runners = {&host}}};
    return serve_live(workload, setup, {}, clock);
  }

  Workload workload;
  ServiceConfig config;
  LiveClock clock;
  FakeHost host;
};

// Every request gets the tokens that it would get alone; returns the metrics.
ServingMetrics expect_own_tokens(TieredLive& live) {
  const LiveResult result = live.run();
  EXPECT_TRUE(result.is_complete);
  if (result.error) std::rethrow_exception(result.error);
  for (const Request& request : live.workload.requests) {
    EXPECT_EQ(result.tokens[static_cast<std::size_t>(request.id)],
              whole_history(kPromptSeed, request, kUnitTokens))
        << "request " << request.id;
  }
  return result.service.metrics;
}

TEST(LiveTiers, PrefixesOnTheGpuLeaveEveryTokenAsItWas) {
  TieredLive live(shared_prompts(60, 1, 1e6), tiered(200, 0), CopyTiming::kLazy);
  const ServingMetrics metrics = expect_own_tokens(live);
  EXPECT_GT(metrics.cached_tokens, 0);
  EXPECT_FALSE(metrics.kv_tiers);
}

// Whether copies run as early as they may, as late, or anyhow.
TEST(LiveTiers, SoDoPrefixesOnTheHost) {
  for (const CopyTiming timing : {CopyTiming::kEager, CopyTiming::kLazy, CopyTiming::kRandom}) {
    for (const TierOverlap overlap : {TierOverlap::kLayers, TierOverlap::kNone}) {
      for (const TierWrite write : {TierWrite::kEviction, TierWrite::kThrough}) {
        for (const bool is_async : {false, true}) {
          ServiceConfig config = tiered(50, 60, write);
          config.kv_tiers.overlap = overlap;
          config.engine.async_scheduling = is_async;
          TieredLive live(shared_prompts(80, 2, 1e6), config, timing);
          const ServingMetrics metrics = expect_own_tokens(live);
          EXPECT_GT(metrics.kv_tiers->tiers[0].hit_tokens, 0);
          EXPECT_GT(live.host.num_loads, 0);
        }
      }
    }
  }
}

TEST(LiveTiers, SoDoPreemptionsAndAHostOfHardlyOnePrompt) {
  std::int64_t num_preemptions = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    for (const CopyTiming timing : {CopyTiming::kEager, CopyTiming::kLazy, CopyTiming::kRandom}) {
      TieredLive live(shared_prompts(80, seed, 1e6), tiered(32, 13), timing);
      num_preemptions += expect_own_tokens(live).num_preemptions;
      EXPECT_GT(live.host.num_loads, 0);
    }
  }
  EXPECT_GT(num_preemptions, 0);
}

// What moved is what the scheduler counted: bytes of units, by requests of all kinds.
TEST(LiveTiers, WhatMovesIsWhatIsCounted) {
  TieredLive live(shared_prompts(80, 3, 1e6), tiered(50, 200), CopyTiming::kRandom);
  const TierMetrics tier = expect_own_tokens(live).kv_tiers->tiers[0];
  EXPECT_EQ(tier.loaded, Bytes(2 * kBlockBytes * static_cast<double>(live.host.num_loads)));
  EXPECT_EQ(tier.written, Bytes(2 * kBlockBytes * static_cast<double>(live.host.num_writes)));
}

// serve() with the same step times makes the same records, to rounding.
TEST(LiveTiers, AServiceIsWhatServeMakesOfTheSameSteps) {
  TieredLive live(shared_prompts(60, 4, 150), tiered(50, 60), CopyTiming::kLazy, Seconds(0.001));
  const LiveResult result = live.run();
  ASSERT_TRUE(result.is_complete);
  const ServiceResult expected = serve(live.workload, live.config, {}, [&](int replica) {
    return std::make_unique<RepeatedSteps>(result.service.steps, replica);
  });
  ASSERT_EQ(result.service.steps.size(), expected.steps.size());
  for (std::size_t i = 0; i < expected.requests.size(); ++i) {
    const RequestRecord& a = result.service.requests[i];
    const RequestRecord& b = expected.requests[i];
    EXPECT_NEAR(a.first_scheduled.value(), b.first_scheduled.value(), 1e-9) << "request " << i;
    EXPECT_NEAR(a.first_token.value(), b.first_token.value(), 1e-9) << "request " << i;
    EXPECT_NEAR(a.finish.value(), b.finish.value(), 1e-9) << "request " << i;
    EXPECT_EQ(a.cached_tokens, b.cached_tokens) << "request " << i;
    EXPECT_EQ(a.loaded_tokens, b.loaded_tokens) << "request " << i;
  }
  EXPECT_GT(result.service.metrics.kv_tiers->tiers[0].hit_tokens, 0);
  EXPECT_EQ(result.service.metrics.kv_tiers->tiers[0].hit_tokens,
            expected.metrics.kv_tiers->tiers[0].hit_tokens);
  // What steps waited for is what the runner says, and in their times.
  EXPECT_GT(result.service.metrics.kv_tiers->exposed, Seconds(0));
  EXPECT_EQ(expected.metrics.kv_tiers->exposed, Seconds(0));
}

std::string refusal_of(const ServiceConfig& config) {
  TieredLive live(shared_prompts(4, 1, 1e6), config, CopyTiming::kLazy);
  live.workload.requests[0].prompt_tokens = 100;
  live.workload.requests[0].block_hashes.assign(12, 0);
  for (std::size_t i = 0; i < 12; ++i) live.workload.requests[0].block_hashes[i] = 90 + i;
  try {
    live.run();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(LiveTiers, WhatIsNotExecutedIsRefused) {
  EXPECT_EQ(refusal_of(tiered(60, 12)), "");
  EXPECT_NE(refusal_of(tiered(60, 11))
                .find("tier host of 21 MiB holds fewer KV blocks than the "
                      "prompt of request 0 shares"),
            std::string::npos);
  ServiceConfig disk = tiered(60, 12);
  disk.kv_tiers.tiers[0].name = "disk";
  EXPECT_NE(refusal_of(disk).find("executed is one tier named host"), std::string::npos);
  ServiceConfig both = tiered(60, 12);
  both.kv_tiers.tiers.push_back(both.kv_tiers.tiers[0]);
  both.kv_tiers.tiers[1].name = "disk";
  EXPECT_NE(refusal_of(both).find("not executed: host, disk"), std::string::npos);
  ServiceConfig shared = tiered(60, 12);
  shared.kv_tiers.tiers[0].is_shared = true;
  EXPECT_NE(refusal_of(shared).find("host (shared)"), std::string::npos);
}

}  // namespace
}  // namespace orrery

// Tiers behind the KV blocks: what a load costs, who is evicted, and what a service makes of it.

#include "sim/serve/kv_tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "sim/serve/tier_store.h"
#include "tests/serve/fake_steps.h"

namespace orrery {
namespace {

using testing::FakeTimes;
using testing::kTolerance;
using testing::serve_fake;
using testing::small_service;
using testing::workload_of;

// Layer by layer: a layer begins when the one before has ended and its blocks are there.
Seconds by_layers(const BlocksMoving& moving, Seconds duration, int layers) {
  Seconds end;
  for (int layer = 1; layer <= layers; ++layer) {
    const Seconds there = moving.wait + moving.time * (static_cast<double>(layer) / layers);
    end = std::max(end, there) + duration / layers;
  }
  return end - duration;
}

TEST(ExposedTime, IsWhatALayerByLayerScheduleWaits) {
  std::mt19937_64 random(7);
  const auto draw = [&] { return Seconds(static_cast<double>(random() % 1000) / 1000); };
  for (int i = 0; i < 200; ++i) {
    const int layers = 1 + static_cast<int>(random() % 80);
    const BlocksMoving moving{.wait = draw(), .time = draw()};
    const Seconds duration = draw();
    EXPECT_NEAR(
        exposed_time(moving, duration, {.all = layers, .of_stage = layers}, TierOverlap::kLayers)
            .value(),
        by_layers(moving, duration, layers).value(), kTolerance)
        << layers << " layers";
  }
}

TEST(ExposedTime, LaterStagesOfAPipelineHideNoneOfTheFirst) {
  // 2 stages of 2 layers, 8 ms a layer: 12 ms of blocks come in 6 ms a layer. The first is waited
  // for, the second comes while the first computes.
  const StepLayers layers{.all = 4, .of_stage = 2};
  EXPECT_NEAR(
      exposed_time({.time = Seconds(0.012)}, Seconds(0.032), layers, TierOverlap::kLayers).value(),
      0.006, kTolerance);
  // 40 ms of blocks: the second layer waits until 40, and 3 of 4 layers are still to come: 16 + 8.
  EXPECT_NEAR(
      exposed_time({.time = Seconds(0.040)}, Seconds(0.032), layers, TierOverlap::kLayers).value(),
      0.040 + 3 * 0.008 - 0.032, kTolerance);
}

TEST(TierStore, WhatWasUsedLongestAgoGoesFirst) {
  TierStore store(2);
  EXPECT_FALSE(store.put(1, Seconds(0)));
  EXPECT_FALSE(store.put(2, Seconds(0)));
  store.touch(1);
  EXPECT_EQ(store.put(3, Seconds(0)), 2U);
  EXPECT_EQ(store.put(4, Seconds(0)), 1U);
  EXPECT_EQ(store.size(), 2);
}

TEST(TierStore, AUnitIsThereOnceItIsWritten) {
  TierStore store(1);
  store.put(1, Seconds(2));
  EXPECT_FALSE(store.is_written(1, Seconds(1)));
  EXPECT_TRUE(store.is_written(1, Seconds(2)));
}

// Units of two blocks of 1 MB, so 2 ms each at 1 GB/s.
KvTier host(double num_units, TierWrite write = TierWrite::kEviction) {
  return {.name = "host",
          .capacity = Bytes(num_units * 2e6),
          .bandwidth = BytesPerSecond(1e9),
          .write_bandwidth = BytesPerSecond(1e9),
          .latency = Seconds(0.0005),
          .write = write};
}

KvTiersConfig tiers_of(std::vector<KvTier> tiers) {
  return {.tiers = std::move(tiers),
          .block_of_gpu = Bytes(1e6),
          .block = Bytes(1e6),
          .layers = {.all = 4, .of_stage = 4}};
}

// Every unit, tier by tier, oldest first, in plain lists.
class PlainTiers {
 public:
  explicit PlainTiers(const KvTiersConfig& config) : config_(config), held_(config.tiers.size()) {}
  void offer(std::size_t tier, std::uint64_t hash) {
    if (tier == held_.size()) return;
    if (std::ranges::find(held_[tier], hash) != held_[tier].end()) {
      touch(tier, hash);
    } else if (config_.tiers[tier].write == TierWrite::kEviction) {
      put(tier, hash);
    }
  }
  void publish(std::uint64_t hash) {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (config_.tiers[i].write == TierWrite::kEviction) continue;
      const bool is_held = std::ranges::find(held_[i], hash) != held_[i].end();
      is_held ? touch(i, hash) : put(i, hash);
    }
  }
  void touch(std::size_t tier, std::uint64_t hash) {
    if (std::erase(held_[tier], hash) > 0) held_[tier].push_back(hash);
  }
  [[nodiscard]] int find(std::uint64_t hash) const {
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (std::ranges::find(held_[i], hash) != held_[i].end()) return static_cast<int>(i);
    }
    return KvTiers::kNowhere;
  }
  [[nodiscard]] std::int64_t size(std::size_t tier) const { return std::ssize(held_[tier]); }

 private:
  void put(std::size_t tier, std::uint64_t hash) {
    held_[tier].push_back(hash);
    if (std::ssize(held_[tier]) <= tier_units(config_, config_.tiers[tier], 2, 1)) return;
    const std::uint64_t gone = held_[tier].front();
    held_[tier].erase(held_[tier].begin());
    offer(tier + 1, gone);
  }
  const KvTiersConfig& config_;
  std::vector<std::vector<std::uint64_t>> held_;
};

// Whatever is computed, evicted and used again: tiers hold what plain lists hold, never more than
// they have room for, and what was written is there or was evicted.
TEST(KvTiers, HoldWhatPlainListsHold) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<KvTier> given;
    for (const char* name : {"host", "disk", "store"}) {
      given.push_back(host(1 + static_cast<double>(random() % 9),
                           random() % 2 == 0 ? TierWrite::kEviction : TierWrite::kThrough));
      given.back().name = name;
    }
    const KvTiersConfig config = tiers_of(given);
    SharedTiers shared(config, 2);
    KvTiers tiers(config, 2, 8, 1, shared);
    PlainTiers plain(config);
    for (int i = 0; i < 2000; ++i) {
      tiers.at(Seconds(i));  // long enough for every write to have ended
      const std::uint64_t hash = random() % 30;
      switch (random() % 3) {
        case 0:
          tiers.published(hash);
          plain.publish(hash);
          break;
        case 1:
          tiers.evicted(hash);
          plain.offer(0, hash);
          break;
        default:
          tiers.touch(std::span(&hash, 1));
          for (std::size_t tier = 0; tier < given.size(); ++tier) plain.touch(tier, hash);
      }
      tiers.at(Seconds(i + 0.9));
      for (std::uint64_t unit = 0; unit < 30; ++unit) ASSERT_EQ(tiers.find(unit), plain.find(unit));
      for (std::size_t tier = 0; tier < given.size(); ++tier) {
        const TierCounts& counts = tiers.counts()[tier];
        ASSERT_EQ(counts.num_written - counts.num_evicted, plain.size(tier));
        ASSERT_LE(plain.size(tier), tier_units(config, given[tier], 2, 1));
      }
    }
  }
}

Request prompt(double arrival, std::uint64_t first_hash) {
  Request request{.arrival = Seconds(arrival), .prompt_tokens = 40, .output_tokens = 2};
  for (std::uint64_t i = 0; i < 5; ++i) request.block_hashes.push_back(first_hash + i);
  return request;
}

// 12 blocks of 4 tokens: one prompt of 40 tokens and its outputs fill 11 of them, so the second
// pushes out all of the first but what lies in the free block, and the third finds 4 units of it.
Workload three_prompts() {
  Workload workload = workload_of({prompt(0, 1), prompt(1, 11), prompt(2, 1)});
  workload.hash_block_tokens = 8;
  return workload;
}

ServiceConfig service_of(std::vector<KvTier> tiers) {
  ServiceConfig config = small_service();
  config.num_kv_blocks = 12;
  config.engine.enable_prefix_caching = true;
  config.kv_tiers = tiers_of(std::move(tiers));
  return config;
}

double ttft_of(const ServiceResult& result, std::size_t request) {
  const RequestRecord& record = result.requests[request];
  return (record.first_token - record.arrival).value();
}

TEST(KvTierService, AnEvictedPrefixIsLoadedBack) {
  const auto result = serve_fake(three_prompts(), service_of({host(100)}));
  EXPECT_NEAR(ttft_of(result, 0), 0.010 + 0.040, kTolerance);
  // 4 units leave for the second prompt's first 10 blocks: 8 ms in 4 layers, of which the first is
  // waited for, after 0.5 ms of latency. The others leave while layers of 12.5 ms compute.
  EXPECT_NEAR(ttft_of(result, 1), 0.050 + 0.0005 + 0.002, kTolerance);
  // The third computes 8 tokens in 18 ms. 4 units come, and 4 of the second prompt's leave.
  EXPECT_NEAR(ttft_of(result, 2), 0.018 + 0.0005 + 0.002, kTolerance);
  EXPECT_EQ(result.requests[2].cached_tokens, 32);
  EXPECT_EQ(result.requests[2].loaded_tokens, 32);
  const KvTierMetrics& metrics = *result.metrics.kv_tiers;
  EXPECT_EQ(metrics.tiers[0].hit_tokens, 32);
  EXPECT_EQ(metrics.tiers[0].loaded, Bytes(8e6));
  // Each of the two later prompts pushes out 4 units, and a fifth for its 41st token.
  EXPECT_EQ(metrics.tiers[0].written, Bytes(20e6));
  EXPECT_EQ(metrics.tiers[0].held, Bytes(20e6));
  EXPECT_NEAR(metrics.exposed.value(), 2 * 0.0025, kTolerance);
}

TEST(KvTierService, WithoutTiersItIsComputedAgain) {
  const auto result = serve_fake(three_prompts(), service_of({}));
  EXPECT_NEAR(ttft_of(result, 2), 0.050, kTolerance);
  EXPECT_EQ(result.requests[2].cached_tokens, 0);
  EXPECT_FALSE(result.metrics.kv_tiers.has_value());
}

TEST(KvTierService, ASlowLinkHoldsUpTheLastLayer) {
  KvTier slow = host(100, TierWrite::kThrough);
  slow.bandwidth = BytesPerSecond(1e8);
  const auto result = serve_fake(three_prompts(), service_of({slow}));
  // 80 ms of blocks; the last layer, a quarter of 18 ms, begins after them.
  EXPECT_NEAR(ttft_of(result, 2), 0.0005 + 0.080 + 0.018 / 4, kTolerance);
}

TEST(KvTierService, WithoutOverlapAStepBeginsWhenAllBlocksAreThere) {
  ServiceConfig config = service_of({host(100, TierWrite::kThrough)});
  config.kv_tiers.overlap = TierOverlap::kNone;
  EXPECT_NEAR(ttft_of(serve_fake(three_prompts(), config), 2), 0.0005 + 0.008 + 0.018, kTolerance);
}

TEST(KvTierService, WhatIsWrittenThroughLeavesNothingToWriteOnEviction) {
  const auto result = serve_fake(three_prompts(), service_of({host(100, TierWrite::kThrough)}));
  EXPECT_NEAR(ttft_of(result, 1), 0.050, kTolerance);
  EXPECT_NEAR(ttft_of(result, 2), 0.0205, kTolerance);
  // The 5 units of each of the first two prompts; those of the third are there.
  EXPECT_EQ(result.metrics.kv_tiers->tiers[0].written, Bytes(20e6));
}

TEST(KvTierService, WhatAFullTierEvictsGoesToTheNext) {
  KvTier disk = host(100);
  disk.name = "disk";
  disk.bandwidth = BytesPerSecond(0.25e9);
  // Of the first prompt's units 5 to 1, in this order, the host keeps 5 until the second's come:
  // it has room for 6, and gets 5 more with the third.
  const auto result = serve_fake(three_prompts(), service_of({host(6), disk}));
  const KvTierMetrics& metrics = *result.metrics.kv_tiers;
  EXPECT_EQ(metrics.tiers[0].held, Bytes(12e6));
  EXPECT_EQ(metrics.tiers[1].written, metrics.tiers[0].evicted);
  EXPECT_EQ(metrics.tiers[0].hit_tokens + metrics.tiers[1].hit_tokens, 32);

  // A host of 5 units, all of the first prompt; those of the second push them to the disk.
  Workload workload = three_prompts();
  workload.requests.insert(workload.requests.begin() + 2, prompt(1.5, 21));
  for (std::size_t i = 0; i < 4; ++i) workload.requests[i].id = static_cast<std::int64_t>(i);
  const auto lower = serve_fake(workload, service_of({host(5), disk}));
  EXPECT_EQ(lower.metrics.kv_tiers->tiers[0].hit_tokens, 0);
  EXPECT_EQ(lower.metrics.kv_tiers->tiers[1].hit_tokens, 32);
  // 4 units at 8 ms each: the last layer of 4.5 ms waits for all of them.
  EXPECT_NEAR(ttft_of(lower, 3), 0.0005 + 0.032 + 0.0045, kTolerance);
}

TEST(KvTierService, APrefixIsComputedAgainWhereThatIsFaster) {
  ServiceConfig config = service_of({host(100, TierWrite::kThrough)});
  config.kv_tiers.load = TierLoad::kWhenFaster;
  config.kv_tiers.prefill.per_token = Seconds(0.001);
  const auto fast = serve_fake(three_prompts(), config);
  EXPECT_EQ(fast.requests[2].cached_tokens, 32);
  config.kv_tiers.tiers[0].bandwidth = BytesPerSecond(1e7);  // 200 ms a unit, 8 ms to compute
  const auto slow = serve_fake(three_prompts(), config);
  EXPECT_EQ(slow.requests[2].cached_tokens, 0);
  EXPECT_NEAR(ttft_of(slow, 2), 0.050, kTolerance);
  EXPECT_EQ(slow.metrics.kv_tiers->recomputed_tokens, 32);
}

TEST(KvTierService, ASharedTierIsKnownToAllReplicasAndItsLinkIsTakenInTurn) {
  KvTier store = host(100, TierWrite::kThrough);
  store.is_shared = true;
  store.bandwidth = BytesPerSecond(1e8);
  ServiceConfig config = service_of({store});
  config.num_replicas = 3;  // in turn
  Workload workload = workload_of({prompt(0, 1), prompt(1, 1), prompt(1, 1)});
  workload.hash_block_tokens = 8;
  const auto result = serve_fake(workload, config);
  // Replicas 1 and 2 load at once what replica 0 computed: 80 ms, and 80 ms after those.
  EXPECT_NEAR(ttft_of(result, 1), 0.0005 + 0.080 + 0.0045, kTolerance);
  EXPECT_NEAR(ttft_of(result, 2), 0.0005 + 0.160 + 0.0045, kTolerance);
  EXPECT_EQ(result.metrics.kv_tiers->tiers[0].held, Bytes(10e6));
  config.kv_tiers.tiers[0].is_shared = false;
  EXPECT_EQ(serve_fake(workload, config).requests[1].cached_tokens, 0);
}

// Every prompt token is computed in some step, or found; blocks are given back (serve asserts it).
TEST(KvTierService, TokensAreComputedOrFound) {
  std::mt19937_64 random(3);
  Workload workload = testing::random_workload(3, 40);
  workload.hash_block_tokens = 8;
  for (Request& request : workload.requests) {
    const std::uint64_t group = random() % 9;
    for (std::int64_t unit = 0; unit < request.prompt_tokens / 8; ++unit) {
      request.block_hashes.push_back(group * 1000 + static_cast<std::uint64_t>(unit));
    }
  }
  ServiceConfig config = service_of({host(20), host(60, TierWrite::kThrough)});
  config.kv_tiers.tiers[1].name = "disk";
  config.num_kv_blocks = 150;
  config.engine.kv_admission = KvAdmission::kFullLength;  // no preemption
  const auto result = serve_fake(workload, config);
  std::int64_t computed = 0;
  for (const StepRecord& step : result.steps) {
    ASSERT_LE(step.kv_blocks_used, 150);
    computed += step.prefill_tokens;
  }
  EXPECT_EQ(computed, result.metrics.prompt_tokens - result.metrics.cached_tokens);
  std::int64_t loaded = 0;
  for (const RequestRecord& record : result.requests) loaded += record.loaded_tokens;
  const KvTierMetrics& metrics = *result.metrics.kv_tiers;
  EXPECT_GT(metrics.tiers[0].hit_tokens, 0);
  EXPECT_GT(metrics.tiers[1].hit_tokens, 0);
  EXPECT_EQ(loaded, metrics.tiers[0].hit_tokens + metrics.tiers[1].hit_tokens);
  for (const TierMetrics& tier : metrics.tiers) {
    EXPECT_EQ(tier.written - tier.evicted, tier.held);
    EXPECT_LE(tier.held, tier.capacity);
  }
  EXPECT_EQ(serve_fake(workload, config).metrics.kv_tiers->exposed, metrics.exposed);
}

std::string refusal(const ServiceConfig& config) {
  try {
    serve_fake(three_prompts(), config);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(KvTierService, WhatCannotBeATierIsRefused) {
  EXPECT_NE(refusal(service_of({host(4)})).find("expected at least 9.54 MiB"), std::string::npos);
  EXPECT_NE(refusal(service_of({host(9), host(9)})).find("two tiers named host"),
            std::string::npos);
  ServiceConfig config = service_of({host(9)});
  config.engine.enable_prefix_caching = false;
  EXPECT_NE(refusal(config).find("enable_prefix_caching"), std::string::npos);
  config = service_of({host(9)});
  config.state_blocks = 1;
  EXPECT_NE(refusal(config).find("states"), std::string::npos);
}

}  // namespace
}  // namespace orrery

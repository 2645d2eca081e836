// Published delays of all-to-alls, and what layers lose by them.

#include "sim/cost/moe_stragglers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace orrery {
namespace {

const FusedMoeShape kShape{
    .tokens = 8192, .hidden = 2048, .ffn = 2048, .experts = 64, .topk = 2, .ranks = 8};

MoeStragglers stragglers(std::string_view name, const FusedMoeShape& shape = kShape) {
  return simulate_moe_stragglers(shape, h200_moe_tile_times(), published_jitter(name));
}

TEST(MoeStragglers, ThePublishedGpusAreAsLateAsPublished) {
  for (const MoeJitter& jitter : kPublishedJitter) {
    EXPECT_NEAR(last_rank_delay(jitter, jitter.num_gpus, 0.5), jitter.median - 1, 1e-9);
    EXPECT_NEAR(last_rank_delay(jitter, jitter.num_gpus, 0.95), jitter.p95 - 1, 1e-8);
  }
}

// That none of n is later than d: the n-th root of that none of n^2 is.
TEST(MoeStragglers, FewerRanksAreLateLessOften) {
  const MoeJitter& jitter = kPublishedJitter.front();
  EXPECT_DOUBLE_EQ(last_rank_delay(jitter, 8, 0.8), last_rank_delay(jitter, 32, std::pow(0.8, 4)));
  double before = 0;
  for (const std::int64_t ranks : {1, 2, 8, 32}) {
    const double delay = last_rank_delay(jitter, ranks, 0.9);
    EXPECT_GT(delay, before);
    before = delay;
  }
}

// The kernel's median is that of one delay, of the exchange of rows: 2.1 times as long on eight
// GPUs. 1 % is the step of the quantiles.
TEST(MoeStragglers, OneKernelIsLateOnceAndTwoExchangesTwice) {
  const MoeStragglers found = stragglers("vm");
  const MoeExchangeTimes alone = moe_exchange_times(kShape, h200_moe_tile_times());
  const Seconds lost = found.kernel.median - found.kernel.on_time;
  EXPECT_NEAR(lost.value(), 2.1 * alone.dispatch.value(), 0.02 * lost.value());
  const Seconds bulk = found.bulk.median - found.bulk.on_time;
  EXPECT_GT(bulk, 2.1 * (alone.dispatch + alone.combine));  // of a sum with a long tail
  EXPECT_LT(found.bulk.p95 - found.bulk.on_time, 10.4 * (alone.dispatch + alone.combine));
}

TEST(MoeStragglers, MoreJitterAndMoreDelaysAreNoFaster) {
  const MoeStragglers mild = stragglers("supercomputer");
  const MoeStragglers wild = stragglers("vm");
  for (const auto time : {&MoeStragglers::kernel, &MoeStragglers::stalled, &MoeStragglers::bulk}) {
    EXPECT_EQ((mild.*time).on_time, (wild.*time).on_time);
    EXPECT_LT((mild.*time).median, (wild.*time).median);
    EXPECT_LT((mild.*time).p95, (wild.*time).p95);
    EXPECT_LT((mild.*time).median, (mild.*time).p95);
  }
  EXPECT_LE(wild.kernel.median, wild.stalled.median);
  EXPECT_LE(wild.kernel.p95, wild.stalled.p95);
}

TEST(MoeStragglers, RefuseOneRankAndUnknownNames) {
  FusedMoeShape alone = kShape;
  alone.ranks = 1;
  EXPECT_THROW(stragglers("vm", alone), std::invalid_argument);
  EXPECT_THROW(published_jitter("cloud"), std::invalid_argument);
  EXPECT_THROW(last_rank_delay(kPublishedJitter.front(), 8, 1), std::invalid_argument);
  EXPECT_THROW(last_rank_delay(kPublishedJitter.front(), 0, 0.5), std::invalid_argument);
  for (const MoeJitter& jitter :
       {MoeJitter{"never", 1, 2, 8}, MoeJitter{"less", 3, 2, 8}, MoeJitter{"nobody", 2, 3, 0}}) {
    EXPECT_THROW(last_rank_delay(jitter, 8, 0.5), std::invalid_argument) << jitter.name;
  }
  const MoeTileOptions apart{.network = {.hosts = 2, .rate = BytesPerSecond(50e9)}};
  EXPECT_THROW(
      simulate_moe_stragglers(kShape, h200_moe_tile_times(), kPublishedJitter.front(), apart),
      std::invalid_argument);
}

}  // namespace
}  // namespace orrery

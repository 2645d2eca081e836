#include <gtest/gtest.h>

#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

constexpr BytesPerSecond kRate(100e9);
constexpr Seconds kLatency(2e-6);

TEST(ClosedForms, RingAllReduceTakesTwoRoundsOfShares) {
  // 2 (4-1) (2 us + 1 MB / (4 * 100 GB/s)) = 6 (2 us + 2.5 us) = 27 us
  EXPECT_NEAR(ring_all_reduce_time(Bytes(1e6), 4, kRate, kLatency).value(), 27e-6, 1e-15);
}

TEST(ClosedForms, RingAllGatherPassesEachContributionOn) {
  // (4-1) (2 us + 1 MB / 100 GB/s) = 3 * 12 us = 36 us
  EXPECT_NEAR(ring_all_gather_time(Bytes(1e6), 4, kRate, kLatency).value(), 36e-6, 1e-15);
}

TEST(ClosedForms, AllReduceIsReduceScatterThenAllGather) {
  const Bytes buffer(3e7);
  for (const int ranks : {2, 3, 8, 64}) {
    const Seconds parts = ring_reduce_scatter_time(buffer, ranks, kRate, kLatency) +
                          ring_all_gather_time(buffer / ranks, ranks, kRate, kLatency);
    EXPECT_NEAR(ring_all_reduce_time(buffer, ranks, kRate, kLatency) / parts, 1, 1e-12);
  }
}

TEST(ClosedForms, DirectAllToAllSendsAllButItsOwnShare) {
  // 2 us + 3/4 * 1 MB / 100 GB/s = 9.5 us
  EXPECT_NEAR(direct_all_to_all_time(Bytes(1e6), 4, kRate, kLatency).value(), 9.5e-6, 1e-15);
}

TEST(ClosedForms, OneShotAllReduceReadsAllOtherBuffers) {
  // 2 us + 3 * 1 MB / 100 GB/s = 32 us
  EXPECT_NEAR(one_shot_all_reduce_time(Bytes(1e6), 4, kRate, kLatency).value(), 32e-6, 1e-15);
}

TEST(ClosedForms, PipelinedBroadcastPaysLatencyPerHopAndBytesOnce) {
  // 3 * 2 us + 1 MB / 100 GB/s = 16 us
  EXPECT_NEAR(pipelined_broadcast_time(Bytes(1e6), 4, kRate, kLatency).value(), 16e-6, 1e-15);
}

TEST(ClosedForms, OneShotWinsForSmallBuffersAndRingForLargeOnes) {
  const auto one_shot = [](double bytes) {
    return one_shot_all_reduce_time(Bytes(bytes), 8, kRate, kLatency);
  };
  const auto ring = [](double bytes) {
    return ring_all_reduce_time(Bytes(bytes), 8, kRate, kLatency);
  };
  EXPECT_LT(one_shot(1e3), ring(1e3));
  EXPECT_GT(one_shot(1e9), ring(1e9));
}

TEST(ClosedForms, RejectOneRankAndNoRate) {
  testing::expect_contains(
      testing::error_of([] { ring_all_reduce_time(Bytes(1), 1, kRate, kLatency); }), "at least 2");
  testing::expect_contains(
      testing::error_of([] { direct_all_to_all_time(Bytes(1), 2, BytesPerSecond(0), kLatency); }),
      "rate");
  testing::expect_contains(
      testing::error_of([] { ring_all_gather_time(Bytes(-1), 2, kRate, kLatency); }), "bytes");
}

}  // namespace
}  // namespace orrery

#include "sim/serve/latency_histogram.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

TEST(LatencyHistogram, QuantilesOfALineAreWithinHalfABin) {
  LatencyHistogram histogram;
  // 1 ms, 1.001 ms, ..., 2 ms: 1001 values; p50 = 1.5 ms, p90 = 1.9 ms, p99 = 1.99 ms.
  histogram.add_linear(Seconds(1e-3), Seconds(1e-6), 1001, 3);
  const Quantiles quantiles = histogram.quantiles();
  EXPECT_EQ(histogram.count(), 3003);
  EXPECT_NEAR(quantiles.mean, 1.5e-3, 1e-12);
  EXPECT_NEAR(quantiles.p50, 1.5e-3, 1.5e-3 * 1.5e-3);
  EXPECT_NEAR(quantiles.p90, 1.9e-3, 1.9e-3 * 1.5e-3);
  EXPECT_NEAR(quantiles.p95, 1.95e-3, 1.95e-3 * 1.5e-3);
  EXPECT_NEAR(quantiles.p99, 1.99e-3, 1.99e-3 * 1.5e-3);
  EXPECT_DOUBLE_EQ(quantiles.max, 2e-3);
}

TEST(LatencyHistogram, AFastForwardEqualsItsStepsOneByOne) {
  LatencyHistogram fast;
  LatencyHistogram steps;
  fast.add_linear(Seconds(0.0123), Seconds(3.3e-6), 5000, 7);
  for (int i = 0; i < 5000; ++i) steps.add(Seconds(0.0123 + 3.3e-6 * i), 7);
  EXPECT_EQ(fast.count(), steps.count());
  EXPECT_DOUBLE_EQ(fast.quantiles().p50, steps.quantiles().p50);
  EXPECT_DOUBLE_EQ(fast.quantiles().p90, steps.quantiles().p90);
  EXPECT_DOUBLE_EQ(fast.quantiles().p99, steps.quantiles().p99);
  EXPECT_NEAR(fast.quantiles().mean, steps.quantiles().mean, 1e-12);
}

TEST(LatencyHistogram, MergingAddsCountsAndMeans) {
  LatencyHistogram a;
  LatencyHistogram b;
  a.add(Seconds(1), 1);
  b.add(Seconds(4), 2);
  a.merge(b);
  EXPECT_EQ(a.count(), 3);
  EXPECT_DOUBLE_EQ(a.quantiles().mean, 3.0);  // (1 + 4 + 4) / 3
}

TEST(LatencyHistogram, AnEmptyOneHasZeros) { EXPECT_EQ(LatencyHistogram().quantiles().p99, 0); }

}  // namespace
}  // namespace orrery

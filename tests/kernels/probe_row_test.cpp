// Rows of probes: what median and spread mean.

#include <gtest/gtest.h>

#include "kernels/harness/probe.h"

namespace orrery::test {
namespace {

TEST(ProbeRow, MedianAndQuartilesDoNotDependOnTheOrderOfSamples) {
  // 1 … 8: the upper of the two middle values is 5, the quartiles are 3 and 7: (7 - 3) / 5.
  const ProbeRow row = probe_row("gap", "", kMicroseconds, {8, 3, 1, 6, 2, 7, 5, 4});
  EXPECT_DOUBLE_EQ(row.median, 5);
  EXPECT_DOUBLE_EQ(row.spread, 4.0 / 5);
  EXPECT_EQ(row.samples, 8);
}

TEST(ProbeRow, OneOutlierMovesNeitherMedianNorSpread) {
  const ProbeRow calm = probe_row("gap", "", kMicroseconds, {10, 10, 10, 10, 10});
  const ProbeRow shaken = probe_row("gap", "", kMicroseconds, {10, 10, 1000, 10, 10});
  EXPECT_DOUBLE_EQ(shaken.median, calm.median);
  EXPECT_DOUBLE_EQ(shaken.spread, 0);
}

TEST(ProbeRow, WarmUpSamplesAreDroppedAndTimesAreMicroseconds) {
  int calls = 0;
  const ProbeRow row =
      time_probe("gap", "", 3, [&] { return Seconds(++calls <= 2 ? 1.0 : 4e-6); }, 2);
  EXPECT_EQ(calls, 5);
  EXPECT_DOUBLE_EQ(row.median, 4);
  EXPECT_EQ(row.unit, "us");
}

}  // namespace
}  // namespace orrery::test

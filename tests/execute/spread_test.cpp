// Medians and spreads of the times of a run.

#include "kernels/tool/spread.h"

#include <gtest/gtest.h>

namespace orrery::tool {
namespace {

// Sorted 1 2 3 4 8: quartiles 2 and 4 about 3.
TEST(Spread, IsTheInterquartileRangeOverTheMedian) {
  const Spread found = spread_of({8, 1, 3, 4, 2});
  EXPECT_DOUBLE_EQ(found.median, 3);
  EXPECT_DOUBLE_EQ(found.relative, 2.0 / 3);
  EXPECT_DOUBLE_EQ(spread_of({5}).median, 5);
  EXPECT_DOUBLE_EQ(spread_of({5}).relative, 0);
}

}  // namespace
}  // namespace orrery::tool

#include "sim/units/largest_normal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace orrery {
namespace {

// Of two: 1 / sqrt(pi); of three: 3 / (2 sqrt(pi)) (David and Nagaraja, Order Statistics, 2003).
TEST(LargestNormal, IsTheClosedFormWhereThereIsOne) {
  EXPECT_NEAR(largest_normal(1), 0, 1e-6);
  EXPECT_NEAR(largest_normal(2), std::numbers::inv_sqrtpi, 1e-4);
  EXPECT_NEAR(largest_normal(3), 1.5 * std::numbers::inv_sqrtpi, 1e-4);
}

TEST(LargestNormal, GrowsMoreSlowlyThanTheRootOfTwiceTheLogarithm) {
  double before = largest_normal(2);
  for (int count = 4; count <= 1024; count *= 2) {
    const double now = largest_normal(count);
    EXPECT_GT(now, before);
    EXPECT_LT(now, std::sqrt(2 * std::log(count)));
    before = now;
  }
}

}  // namespace
}  // namespace orrery

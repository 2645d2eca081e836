// The distance of outputs from references notices what a broken kernel leaves behind.

#include "kernels/harness/difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace orrery {
namespace {

TEST(Difference, IsTheNormOfTheErrorOverTheNormOfTheReference) {
  // ref (3, 4) has norm 5, the error (0, 1) norm 1.
  const std::vector<double> ref{3, 4};
  const std::vector<double> out{3, 5};
  EXPECT_DOUBLE_EQ(difference("y", out, ref, 0.1).error, 0.2);
  EXPECT_FALSE(difference("y", out, ref, 0.1).passes());
  EXPECT_TRUE(difference("y", out, ref, 0.2).passes());
}

TEST(Difference, OneValueThatWasNeverWrittenFails) {
  std::vector<double> out(1000, 1.0);
  const std::vector<double> ref(1000, 1.0);
  out[617] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(difference("y", out, ref, 1e9).passes());
  out[617] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(difference("y", out, ref, 1e9).passes());
}

TEST(Difference, OfAZeroReferenceIsTheNormOfTheOutput) {
  const std::vector<double> ref{0, 0};
  EXPECT_DOUBLE_EQ(difference("y", std::vector<double>{0, 2}, ref, 1).error, 2);
  EXPECT_DOUBLE_EQ(difference("y", std::vector<double>{0, 0}, ref, 0).error, 0);
}

TEST(Difference, OfDifferentSizesIsAnError) {
  EXPECT_THROW(difference("y", std::vector<double>{1}, std::vector<double>{1, 2}, 1),
               std::invalid_argument);
}

TEST(Difference, BoundsHoldOneRoundingOfRandomValues) {
  // Rounding 1 + u to p significant bits leaves an error uniform in +-2^-p: its root mean square
  // over the values in [1, 2) is 2^-p / sqrt(3) against a root mean square of the values above 1.
  EXPECT_GT(kBf16Bound, std::exp2(-8) / std::sqrt(3.0));
  EXPECT_LT(kBf16Bound, 2 * std::exp2(-8) / std::sqrt(3.0));
  EXPECT_GT(kFp8Bound, std::exp2(-4) / std::sqrt(3.0));
  EXPECT_LT(kFp8Bound, 2 * std::exp2(-4) / std::sqrt(3.0));
}

}  // namespace
}  // namespace orrery

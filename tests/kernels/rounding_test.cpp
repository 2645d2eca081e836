// Rounding to stored formats: exact values stay, ties go to even, ranges clamp.

#include "kernels/harness/rounding.h"

#include <gtest/gtest.h>

#include <cmath>

namespace orrery {
namespace {

TEST(RoundBf16, KeepsEightSignificantBitsAndTiesToEven) {
  const double ulp = std::ldexp(1.0, -7);  // of bf16 in [1, 2)
  EXPECT_EQ(round_bf16(1 + ulp), 1 + ulp);
  EXPECT_EQ(round_bf16(1 + 0.5 * ulp), 1);
  EXPECT_EQ(round_bf16(1 + 1.5 * ulp), 1 + 2 * ulp);
  EXPECT_EQ(round_bf16(-(1 + 0.51 * ulp)), -(1 + ulp));
  EXPECT_EQ(round_bf16(2 - 0.25 * ulp), 2);
}

TEST(RoundBf16, ErrsByAtMostHalfAUnitAtAnyMagnitude) {
  for (double value = 1e-30; value < 1e30; value *= 1.37) {
    EXPECT_LE(std::abs(round_bf16(value) - value), std::ldexp(value, -8)) << value;
  }
}

TEST(RoundFp8, ClampsAndRoundsOnItsGrid) {
  EXPECT_EQ(round_fp8(1e6), 448);
  EXPECT_EQ(round_fp8(-449), -448);
  EXPECT_EQ(round_fp8(432), 416 + 32);  // between 416 and 448: the tie goes to the even 448
  EXPECT_EQ(round_fp8(1.0625), 1);      // steps of 1/8 in [1, 2)
  EXPECT_EQ(round_fp8(1.07), 1.125);
  EXPECT_EQ(round_fp8(std::ldexp(1.0, -9)), std::ldexp(1.0, -9));  // the smallest subnormal
  EXPECT_EQ(round_fp8(std::ldexp(1.0, -10)), 0);                   // half of it: to even
  EXPECT_EQ(round_fp8(std::ldexp(1.5, -10)), std::ldexp(1.0, -9));
}

TEST(RoundFp8, LeavesWhatItMade) {
  for (double value = -500; value <= 500; value += 0.37) {
    EXPECT_EQ(round_fp8(round_fp8(value)), round_fp8(value)) << value;
  }
}

}  // namespace
}  // namespace orrery

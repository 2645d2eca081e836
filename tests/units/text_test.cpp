#include "sim/units/text.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

namespace orrery {
namespace {

TEST(FormatNumber, ReadsBackAsTheSameNumber) {
  constexpr std::array<double, 8> values{
      0.1,    1.0 / 3, -2.5e-9, 1e300, 123456789.125, 5e-324, std::numeric_limits<double>::max(),
      1 << 30};
  for (const double value : values)
    EXPECT_EQ(std::strtod(format_number(value).c_str(), nullptr), value);
}

TEST(FormatNumber, IsTheShortestText) {
  EXPECT_EQ(format_number(0.1), "0.1");
  EXPECT_EQ(format_number(1048576), "1048576");
  EXPECT_EQ(format_number(-3), "-3");
}

TEST(FormatNumber, ZeroHasNoSign) { EXPECT_EQ(format_number(-0.0), "0"); }

TEST(FormatNumber, WhatIsNotFiniteIsNamed) {
  EXPECT_EQ(format_number(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(format_number(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(format_number(std::nan("")), "nan");
}

TEST(FormatSignificant, RoundsToThatManyDigits) {
  EXPECT_EQ(format_significant(1234.5, 3), "1230");
  EXPECT_EQ(format_significant(0.00123456, 3), "0.00123");
  EXPECT_EQ(format_significant(-9.996, 3), "-10");
}

TEST(FormatSignificant, LeavesNoTrailingZeros) {
  EXPECT_EQ(format_significant(12.0, 3), "12");
  EXPECT_EQ(format_significant(0.5, 6), "0.5");
}

TEST(FormatSignificant, NumbersTooLongToReadHaveAnExponent) {
  EXPECT_EQ(format_significant(1.25e15, 3), "1.25e+15");
  EXPECT_EQ(format_significant(1.25e-6, 3), "1.25e-06");
  EXPECT_EQ(format_significant(1.25e14, 3), "125000000000000");
}

}  // namespace
}  // namespace orrery

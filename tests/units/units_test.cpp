#include "sim/units/units.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace orrery {
namespace {

TEST(Units, QuotientsOfAmountsAndRatesAreTimes) {
  // 4.8 TB at 4.8 TB/s and 989 TFLOP at 989 TFLOP/s take a second each.
  EXPECT_EQ(Bytes(4.8e12) / BytesPerSecond(4.8e12), Seconds(1));
  EXPECT_EQ(Flops(989e12) / FlopsPerSecond(989e12), Seconds(1));
}

TEST(Units, AnAmountPerTimeTimesThatTimeIsTheAmount) {
  EXPECT_EQ(Bytes(12) / Seconds(4) * Seconds(4), Bytes(12));
  EXPECT_EQ(Flops(12) / Seconds(4) * Seconds(4), Flops(12));
}

TEST(Units, ARatioOfTwoOfAKindIsANumber) {
  static_assert(std::is_same_v<decltype(Bytes(6) / Bytes(4)), double>);
  EXPECT_EQ(Bytes(6) / Bytes(4), 1.5);
}

TEST(Units, ANumberIsNoQuantityByAccident) {
  static_assert(!std::is_convertible_v<double, Seconds>);
  static_assert(!std::is_convertible_v<Seconds, double>);
  static_assert(!std::is_convertible_v<Bytes, Seconds>);
}

TEST(Units, QuantitiesAddAndScaleAsTheirValues) {
  Seconds time(1.5);
  time += Seconds(2);
  time -= Seconds(0.5);
  EXPECT_EQ(time, Seconds(3));
  EXPECT_EQ(2 * time, time * 2);
  EXPECT_EQ(time / 3, Seconds(1));
  EXPECT_LT(Seconds(1), Seconds(2));
}

}  // namespace
}  // namespace orrery

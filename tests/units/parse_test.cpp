#include "sim/units/parse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>

namespace orrery {
namespace {

// What the error of `parse` on `text` says; fails when there is none.
template <typename Parse>
std::string message_of(const Parse& parse, std::string_view text) {
  try {
    parse(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error on \"" << text << '"';
  return {};
}

TEST(Parse, TimesOfEachUnit) {
  EXPECT_EQ(parse_seconds("2 s"), Seconds(2));
  EXPECT_EQ(parse_seconds("50 ms"), Seconds(0.05));
  EXPECT_DOUBLE_EQ(parse_seconds("1.07 us").value(), 1.07e-6);
  EXPECT_EQ(parse_seconds("20 ns"), Seconds(20e-9));
  EXPECT_EQ(parse_seconds("3 min"), Seconds(180));
  EXPECT_EQ(parse_seconds("1 h"), Seconds(3600));
}

TEST(Parse, SizesWithDecimalAndBinaryPrefixes) {
  EXPECT_EQ(parse_bytes("141 GB"), Bytes(141e9));
  EXPECT_EQ(parse_bytes("80 GiB"), Bytes(80.0 * (1 << 30)));
  EXPECT_EQ(parse_bytes("16 KiB"), Bytes(16384));
  EXPECT_EQ(parse_bytes("512 B"), Bytes(512));
}

TEST(Parse, ABitIsAnEighthOfAByte) {
  // 400 Gbit/s = 50 GB/s.
  EXPECT_EQ(parse_bytes_per_second("400 Gbit/s"), parse_bytes_per_second("50 GB/s"));
}

TEST(Parse, RatesAmountsAndPower) {
  EXPECT_EQ(parse_bytes_per_second("4.8 TB/s"), BytesPerSecond(4.8e12));
  EXPECT_EQ(parse_flops_per_second("989 TFLOP/s"), FlopsPerSecond(989e12));
  EXPECT_EQ(parse_watts("700 W"), Watts(700));
  EXPECT_EQ(parse_watts("1.2 kW"), Watts(1200));
}

TEST(Parse, SpacesAroundAndBetweenDoNotMatter) {
  EXPECT_EQ(parse_seconds("  50   ms "), Seconds(0.05));
  EXPECT_EQ(parse_seconds("50ms"), Seconds(0.05));
}

TEST(Parse, ExponentsAreNumbers) { EXPECT_EQ(parse_bytes("1e3 B"), Bytes(1000)); }

TEST(Parse, ANumberWithoutAUnitIsAnError) {
  EXPECT_NE(message_of(parse_seconds, "50").find("has no unit"), std::string::npos);
}

TEST(Parse, AUnitOfAnotherKindIsNamedAsSuch) {
  EXPECT_NE(message_of(parse_bytes_per_second, "450 GB").find("\"GB\" is a unit of size"),
            std::string::npos);
  EXPECT_NE(message_of(parse_seconds, "700 W").find("is a unit of power"), std::string::npos);
}

TEST(Parse, AnUnknownUnitFindsTheNearest) {
  EXPECT_NE(message_of(parse_bytes_per_second, "450 gB/s").find("nearest is \"GB/s\""),
            std::string::npos);
  EXPECT_NE(message_of(parse_seconds, "5 msec").find("nearest is \"ms\""), std::string::npos);
}

TEST(Parse, TextThatIsNoNumberIsAnError) {
  for (const std::string_view text : {"", "  ", "fast", "ms", "+5 s", "- 5 s"}) {
    EXPECT_NE(message_of(parse_seconds, text).find("does not start with a number"),
              std::string::npos)
        << text;
  }
}

TEST(Parse, NumbersThatAreNotFiniteAreErrors) {
  // The last one is finite as written but not in seconds.
  for (const std::string_view text : {"inf s", "-inf s", "nan s", "1e400 s", "1e308 h"}) {
    EXPECT_NE(message_of(parse_seconds, text).find("not finite"), std::string::npos) << text;
  }
}

TEST(Parse, DigitGroupsAndOtherBasesAreErrors) {
  for (const std::string_view text : {"1,000 B", "1_000 B", "0x10 B", "1 000 B"}) {
    EXPECT_NE(message_of(parse_bytes, text).find("unknown unit"), std::string::npos) << text;
  }
}

TEST(Parse, EveryErrorListsTheTextAndTheUnits) {
  for (const std::string_view text : {"fast", "5", "5 GB", "5 sec", "1e999 s"}) {
    const std::string message = message_of(parse_seconds, text);
    EXPECT_NE(message.find("\"" + std::string(text) + "\""), std::string::npos) << message;
    EXPECT_NE(message.find("in one of ns us ms s min h"), std::string::npos) << message;
  }
  EXPECT_NE(message_of(parse_bytes, "x").find("B kB MB GB TB PB KiB MiB GiB TiB"),
            std::string::npos);
  EXPECT_NE(message_of(parse_bytes_per_second, "x").find("Mbit/s Gbit/s"), std::string::npos);
  EXPECT_NE(message_of(parse_flops_per_second, "x").find("TFLOP/s PFLOP/s"), std::string::npos);
  EXPECT_NE(message_of(parse_watts, "x").find("mW W kW MW"), std::string::npos);
}

TEST(ToText, HasThreeDigitsAndAFittingPrefix) {
  EXPECT_EQ(to_text(Seconds(0.01234)), "12.3 ms");
  EXPECT_EQ(to_text(BytesPerSecond(4.8e12)), "4.8 TB/s");
  EXPECT_EQ(to_text(Bytes(141e9)), "141 GB");
  EXPECT_EQ(to_text(Flops(2e12)), "2 TFLOP");
  EXPECT_EQ(to_text(FlopsPerSecond(989.4e12)), "989 TFLOP/s");
  EXPECT_EQ(to_text(Watts(1200)), "1.2 kW");
}

TEST(ToText, MemoryHasBinaryPrefixes) {
  EXPECT_EQ(memory_text(Bytes(141.0 * 1024 * 1024 * 1024)), "141 GiB");
  EXPECT_EQ(memory_text(Bytes(1536)), "1.5 KiB");
  EXPECT_EQ(memory_text(Bytes(1000.0 * 1024)), "0.977 MiB");
  EXPECT_EQ(memory_text(Bytes(0)), "0 B");
}

TEST(ToText, WhatRoundsToAThousandTakesTheNextUnit) {
  EXPECT_EQ(to_text(Seconds(999.4e-9)), "999 ns");
  EXPECT_EQ(to_text(Seconds(999.6e-9)), "1 us");
}

TEST(ToText, ZeroIsInTheBaseUnit) {
  EXPECT_EQ(to_text(Seconds()), "0 s");
  EXPECT_EQ(to_text(Bytes()), "0 B");
  EXPECT_EQ(to_text(Watts()), "0 W");
}

TEST(ToText, KeepsTheSign) { EXPECT_EQ(to_text(Seconds(-0.002)), "-2 ms"); }

TEST(ToText, ReadsBackWithinItsThreeDigits) {
  // Rounding to three digits moves a value by at most 0.5 %.
  for (int step = 0; step < 30; ++step) {
    const double value = std::pow(3.7, step);  // up to 1e17
    EXPECT_NEAR(parse_bytes(to_text(Bytes(value))).value(), value, 0.005 * value);
    const double time = value * 1e-9;
    EXPECT_NEAR(parse_seconds(to_text(Seconds(time))).value(), time, 0.005 * time);
  }
}

}  // namespace
}  // namespace orrery

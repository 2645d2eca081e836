#include "sim/serve/lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery {
namespace {

constexpr int kDraws = 100'000;

std::vector<double> drawn(const LengthDistribution& lengths) {
  Random random(5);
  std::vector<double> result;
  result.reserve(kDraws);
  for (int i = 0; i < kDraws; ++i) {
    result.push_back(static_cast<double>(draw(lengths, random)));
  }
  return result;
}

struct Sample {
  double mean = 0;
  double deviation = 0;
};

Sample sample(const std::vector<double>& values) {
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const double mean = sum / kDraws;
  return {.mean = mean, .deviation = std::sqrt(squares / kDraws - mean * mean)};
}

// Four standard errors of the mean.
double error_of(const Sample& found) { return 4 * found.deviation / std::sqrt(kDraws); }

std::string refusal(LengthDistribution (*make)(double, double, std::int64_t, std::int64_t),
                    double first, double second, std::int64_t min, std::int64_t max) {
  try {
    static_cast<void>(make(first, second, min, max));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "(accepted)";
}

TEST(Lengths, AFixedLengthIsAlwaysTheSame) {
  Random random(5);
  EXPECT_EQ(draw({.min = 100, .max = 100}, random), 100);
}

// Clamping the log-normal of that mean and cv would serve a mean of 1,941 in the first, 96.3 in the
// fourth.
TEST(Lengths, TheMeanAndCvServedAreThoseAskedForWhateverTheLimitsCutOff) {
  const struct {
    double mean;
    double cv;
    std::int64_t min;
    std::int64_t max;
  } cases[] = {{2000, 1, 1, 8192},   {2000, 0.5, 1, 4096},    {2000, 1, 16, 16384},
               {100, 0.75, 2, 256},  {20, 1, 1, 120},         {2, 1, 1, 100},
               {10.4, 0.5, 1, 1000}, {500, 0.5, 1, 1'000'000}};
  for (const auto& asked : cases) {
    const Sample found =
        sample(drawn(lognormal_of_mean_cv(asked.mean, asked.cv, asked.min, asked.max)));
    EXPECT_NEAR(found.mean, asked.mean, error_of(found)) << asked.mean << " to " << asked.max;
    // The standard error of a deviation is larger for long tails; 3 % is some four of the longest.
    EXPECT_NEAR(found.deviation / found.mean, asked.cv, 0.03 * asked.cv)
        << asked.mean << " to " << asked.max;
  }
}

TEST(Lengths, TheMeanAndMedianServedAreThoseAskedFor) {
  const struct {
    double mean;
    double p50;
    std::int64_t min;
    std::int64_t max;
  } cases[] = {
      {1155, 1020, 16, 8192}, {150, 100, 2, 512}, {211, 129, 2, 1024}, {200, 100, 1, 1000}};
  for (const auto& asked : cases) {
    std::vector<double> lengths =
        drawn(lognormal_of_mean_p50(asked.mean, asked.p50, asked.min, asked.max));
    const Sample found = sample(lengths);
    EXPECT_NEAR(found.mean, asked.mean, error_of(found));
    std::ranges::sort(lengths);
    EXPECT_NEAR(lengths[kDraws / 2], asked.p50, 0.02 * asked.p50);
  }
}

TEST(Lengths, TheQuantilesServedAreThoseAskedForWhateverTheLimitsCutOff) {
  for (const std::int64_t max : {14000, 1'000'000}) {
    std::vector<double> lengths = drawn(lognormal_of_p50_p99(1000, 14000, 1, max));
    std::ranges::sort(lengths);
    EXPECT_NEAR(lengths[kDraws / 2], 1000, 20);
    EXPECT_NEAR(lengths[kDraws / 100 * 99], 14000, 700);
  }
}

// Far from its limits a log-normal has mean / p50 = exp(s^2 / 2) and cv^2 = exp(s^2) - 1.
TEST(Lengths, LimitsFarAwayLeaveTheLogNormalAsItIs) {
  const double spread = std::sqrt(std::log1p(0.25));
  const LengthDistribution far = lognormal_of_mean_cv(5000, 0.5, 1, 100'000'000);
  EXPECT_NEAR(far.log_spread, spread, 1e-4);
  EXPECT_NEAR(far.log_median, std::log(5000) - spread * spread / 2, 1e-4);
  EXPECT_NEAR(lognormal_of_mean_p50(2000, 1000, 1, 100'000'000).log_spread,
              std::sqrt(2 * std::log(2.0)), 1e-4);
  EXPECT_LT(share_above_max(far), 1e-9);
}

TEST(Lengths, ACvOfZeroIsTheMeanRounded) {
  const LengthDistribution lengths = lognormal_of_mean_cv(10.4, 0, 1, 100);
  Random random(5);
  EXPECT_EQ(draw(lengths, random), 10);
  EXPECT_EQ(share_above_max(lengths), 0);
}

TEST(Lengths, AMeanOrSpreadThatTheLimitsForbidIsRefusedWithTheRangeThatCanBeHad) {
  EXPECT_EQ(refusal(lognormal_of_mean_cv, 1e5, 0.1, 1, 10),
            "found mean 1e+05 of lengths from 1 to 10; expected it from 1 to 10");
  const std::string tight = refusal(lognormal_of_mean_cv, 2000, 1, 1, 2048);
  EXPECT_NE(tight.find("has a cv of at most 0.13"), std::string::npos) << tight;
  EXPECT_EQ(refusal(lognormal_of_mean_cv, 2000, 0.12, 1, 2048), "(accepted)");
  const std::string high = refusal(lognormal_of_mean_p50, 600, 100, 1, 1000);
  EXPECT_NE(high.find("has a mean of at most 33"), std::string::npos) << high;
  EXPECT_EQ(refusal(lognormal_of_mean_p50, 330, 100, 1, 1000), "(accepted)");
  EXPECT_EQ(refusal(lognormal_of_p50_p99, 100, 1000, 1, 500),
            "found p99 1000 of lengths from 1 to 500; expected it from 1 to 500");
  EXPECT_NE(refusal(lognormal_of_mean_p50, 99, 100, 1, 1000), "(accepted)");
  EXPECT_NE(refusal(lognormal_of_p50_p99, 0, 100, 1, 1000), "(accepted)");
  EXPECT_NE(refusal(lognormal_of_p50_p99, 100, 99, 1, 1000), "(accepted)");
  EXPECT_NE(refusal(lognormal_of_mean_cv, 100, -1, 1, 1000), "(accepted)");
}

TEST(Lengths, ThePartThatMaxCutsOffIsKnown) {
  const LengthDistribution lengths = lognormal_of_mean_cv(2000, 0.5, 1, 4096);
  const std::vector<double> values = drawn(lengths);
  const auto at_max = static_cast<double>(std::ranges::count(values, 4096));
  EXPECT_GT(at_max, 0);
  EXPECT_NEAR(at_max / kDraws, share_above_max(lengths), 0.005);
}

TEST(Lengths, EmpiricalLengthsAreDrawnFromTheirList) {
  const LengthDistribution listed{
      .kind = LengthKind::kUniform, .min = 1, .max = 500, .values = {3, 70, 900}};
  Random random(5);
  std::map<std::int64_t, int> counts;
  for (int i = 0; i < 30000; ++i) ++counts[draw(listed, random)];
  ASSERT_EQ(counts.size(), 3U);
  EXPECT_NEAR(counts[3], 10000, 300);
  EXPECT_NEAR(counts[70], 10000, 300);
  EXPECT_NEAR(counts[500], 10000, 300);  // 900 is clamped
}

}  // namespace
}  // namespace orrery

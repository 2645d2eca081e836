// Loads from distributions, counts and traces.

#include "sim/model/expert_load_sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

namespace orrery {
namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::string trace_error(std::string_view csv) {
  try {
    (void)trace_counts(csv, 4);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

// 1, 1/2, 1/3, 1/4 over 25/12.
TEST(ExpertLoadSources, ZipfSharesFallWithTheRank) {
  const ExpertLoad load = zipf_load(4, 1, 0);
  EXPECT_NEAR(load.shares[0], 12.0 / 25, 1e-12);
  EXPECT_NEAR(load.shares[3], 3.0 / 25, 1e-12);
  for (const double share : zipf_load(5, 0, 9).shares) EXPECT_NEAR(share, 0.2, 1e-12);
}

TEST(ExpertLoadSources, ASeedDealsTheSameSharesToOtherExperts) {
  std::vector<double> dealt = zipf_load(32, 1, 5).shares;
  EXPECT_NE(dealt, zipf_load(32, 1, 0).shares);
  EXPECT_NE(dealt, zipf_load(32, 1, 6).shares);
  std::ranges::sort(dealt, std::greater());
  EXPECT_EQ(dealt, zipf_load(32, 1, 0).shares);
}

// Density x^-2 on [1, 2] has the quantile 1 / (1 - u / 2): at 1/4 and 3/4, 8/7 and 8/5.
TEST(ExpertLoadSources, PowerLawSharesAreItsQuantiles) {
  const ExpertLoad load = power_law_load(2, 2, 0);
  EXPECT_NEAR(load.shares[0] / load.shares[1], (8.0 / 5) / (8.0 / 7), 1e-12);
  EXPECT_NEAR(sum(power_law_load(7, 1, 3).shares), 1, 1e-12);
}

TEST(ExpertLoadSources, ALoadOfProbabilitiesGivesThemBack) {
  const std::vector<double> chosen{1, 0.75, 0.5, 0.5, 0.25, 0};
  const std::vector<double> found = choice_probabilities(load_of_probabilities(chosen, 3), 6, 3);
  for (std::size_t i = 0; i < chosen.size(); ++i) EXPECT_NEAR(found[i], chosen[i], 1e-6) << i;
}

// Top-2 of 40 choices, 20 tokens: 30 of them cannot be of one expert, which 20 tokens chose at
// most; the others keep their proportions.
TEST(ExpertLoadSources, ACountIsAtMostOneForEachToken) {
  const std::vector<std::int64_t> counts{30, 6, 4, 0};
  const std::vector<double> chosen = choice_probabilities(load_of_counts(counts, 2), 4, 2);
  EXPECT_NEAR(chosen[0], 1, 1e-6);
  EXPECT_NEAR(chosen[1], 0.6, 1e-6);
  EXPECT_NEAR(chosen[2], 0.4, 1e-6);
  EXPECT_NEAR(chosen[3], 0, 1e-6);
  EXPECT_THROW((void)load_of_counts(std::vector<std::int64_t>{3, 0, 0}, 2), std::invalid_argument);
  EXPECT_THROW((void)load_of_counts(std::vector<std::int64_t>{3, -1, 4}, 2), std::invalid_argument);
}

TEST(ExpertLoadSources, TracesAreCountsOrTokens) {
  const std::vector<std::int64_t> expected{2, 0, 1, 1};
  EXPECT_EQ(trace_counts("# routing\nexpert,count\n0,2\n3,1\n\n2,1\n", 4), expected);
  EXPECT_EQ(trace_counts("expert_0,expert_1\r\n0,3\r\n2,0\r\n", 4), expected);
}

TEST(ExpertLoadSources, BadTracesSayTheLine) {
  const auto says = [](std::string_view csv, const std::string& text) {
    EXPECT_NE(trace_error(csv).find(text), std::string::npos)
        << "\"" << trace_error(csv) << "\" lacks \"" << text << "\"";
  };
  says("", "expected a header");
  says("expert,number\n", "line 1: header is \"expert,number\"");
  says("expert_0\n1\n4\n", "line 3: expert 4, expected 0 to 3");
  says("expert_0,expert_1\n1\n", "line 2: 1 fields, expected 2");
  says("expert_0,expert_1\n1,1\n", "line 2: expert 1 twice");
  says("expert,count\n1,2\n1,2\n", "line 3: expert 1 for the second time");
  says("expert,count\n1,-2\n", "count is -2");
  says("expert,count\n1,two\n", "\"two\", expected an integer");
}

// 10,000 tokens: the standard deviation of a count is at most 50.
TEST(ExpertLoadSources, DrawnCountsFollowTheProbabilities) {
  const ExpertLoad load = zipf_load(16, 1, 3);
  const std::vector<double> chosen = choice_probabilities(load, 16, 4);
  const std::vector<std::int64_t> counts = sample_counts(load, 16, 10'000, 4, 11);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 40'000);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(counts[i]), 10'000 * chosen[i], 250) << i;
    EXPECT_LE(counts[i], 10'000);
  }
  EXPECT_EQ(sample_counts(load, 16, 10'000, 4, 11), counts);
  EXPECT_NE(sample_counts(load, 16, 10'000, 4, 12), counts);
}

}  // namespace
}  // namespace orrery

// What follows from how evenly tokens choose experts.

#include "sim/model/expert_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace orrery {
namespace {

const ExpertLoad kUniform;
const ExpertLoad kSkewed{.shares = {0.5, 0.2, 0.1, 0.1, 0.05, 0.05, 0.0, 0.0}};

TEST(ExpertLoad, ChoicesOfATokenAddUpToTopk) {
  for (const ExpertLoad& load : {kUniform, kSkewed}) {
    for (const std::int64_t topk : {1, 2, 5, 6}) {
      const std::vector<double> chosen = choice_probabilities(load, 8, topk);
      EXPECT_NEAR(std::accumulate(chosen.begin(), chosen.end(), 0.0), static_cast<double>(topk),
                  1e-6);
      EXPECT_TRUE(std::ranges::all_of(chosen, [](double p) { return p >= 0 && p <= 1; }));
    }
  }
}

TEST(ExpertLoad, OneChoiceFollowsTheShares) {
  EXPECT_EQ(choice_probabilities(kSkewed, 8, 1), kSkewed.shares);
}

// As many experts with a share as a token chooses: each is chosen always.
TEST(ExpertLoad, NoChoiceIsLeftAmongAsManyExpertsAsAreChosen) {
  const std::vector<double> chosen = choice_probabilities(kSkewed, 8, 6);
  for (int e = 0; e < 6; ++e) EXPECT_NEAR(chosen[static_cast<std::size_t>(e)], 1, 1e-6);
}

// 128 experts, 8 of them for each of 16 tokens: 128 rows, 128 (1 - (120/128)^16) = 82.4 active.
TEST(ExpertLoad, ActiveExpertsOfEvenChoicesHaveAClosedForm) {
  const ExpectedLoad all = expected_load(kUniform, 128, 8, 16, 0, 128);
  EXPECT_DOUBLE_EQ(all.rows, 128);
  EXPECT_NEAR(all.active, 128 * (1 - std::pow(120.0 / 128, 16)), 1e-9);
  const ExpectedLoad quarter = expected_load(kUniform, 128, 8, 16, 32, 32);
  EXPECT_NEAR(quarter.active, all.active / 4, 1e-9);
}

TEST(ExpertLoad, RangesAddUpToTheWhole) {
  const ExpectedLoad all = expected_load(kSkewed, 8, 2, 10, 0, 8);
  const ExpectedLoad low = expected_load(kSkewed, 8, 2, 10, 0, 3);
  const ExpectedLoad high = expected_load(kSkewed, 8, 2, 10, 3, 5);
  EXPECT_NEAR(low.rows + high.rows, all.rows, 1e-9);
  EXPECT_NEAR(low.active + high.active, all.active, 1e-9);
  EXPECT_NEAR(all.rows, 20, 1e-5);
}

TEST(ExpertLoad, SkewedChoicesReadFewerExperts) {
  EXPECT_LT(expected_load(kSkewed, 8, 1, 8, 0, 8).active,
            expected_load(kUniform, 8, 1, 8, 0, 8).active);
}

TEST(ExpertLoad, WholeNumbersHaveARowForEachActiveExpert) {
  for (const std::int64_t tokens : {1, 2, 3, 17, 400}) {
    for (const std::int64_t topk : {1, 2, 4}) {
      const ExpectedDims dims = expected_dims(kSkewed, 8, topk, tokens, 0, 8);
      EXPECT_EQ(dims.rows, tokens * topk);
      EXPECT_GE(dims.active, 1);
      EXPECT_LE(dims.active, std::min<std::int64_t>(dims.rows, 8));
    }
  }
  const ExpectedDims none = expected_dims(kSkewed, 8, 1, 5, 6, 2);  // never chosen
  EXPECT_EQ(none.rows, 0);
  EXPECT_EQ(none.active, 0);
}

TEST(ExpertLoad, RowsOfExpertsAreThoseOfTheStep) {
  for (const ExpertLoad& load : {kUniform, kSkewed}) {
    for (const std::int64_t tokens : {1, 5, 64, 1001}) {
      const std::vector<std::int64_t> rows = expert_rows(load, 8, 2, tokens);
      const ExpectedDims dims = expected_dims(load, 8, 2, tokens, 0, 8);
      EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), dims.rows);
      EXPECT_EQ(std::ranges::count_if(rows, [](std::int64_t count) { return count > 0; }),
                dims.active);
    }
  }
  const std::vector<std::int64_t> rows = expert_rows(kSkewed, 8, 1, 1000);
  EXPECT_GT(rows[0], rows[1]);
  EXPECT_GT(rows[1], rows[2]);
}

TEST(ExpertLoadErrors, SharesMustBeThoseOfTheExperts) {
  EXPECT_THROW((void)choice_probabilities(kSkewed, 9, 1), std::invalid_argument);
  EXPECT_THROW((void)choice_probabilities(kSkewed, 8, 7), std::invalid_argument);
  EXPECT_THROW((void)choice_probabilities(kUniform, 8, 9), std::invalid_argument);
  EXPECT_THROW((void)choice_probabilities(kUniform, 8, 0), std::invalid_argument);
  EXPECT_THROW((void)choice_probabilities({.shares = {0.5, 0.6}}, 2, 1), std::invalid_argument);
  EXPECT_THROW((void)choice_probabilities({.shares = {1.5, -0.5}}, 2, 1), std::invalid_argument);
  EXPECT_THROW((void)choice_probabilities({.shares = {std::nan(""), 1}}, 2, 1),
               std::invalid_argument);
  EXPECT_THROW((void)expected_load(kUniform, 8, 1, 4, 6, 3), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

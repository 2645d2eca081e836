// Laws of sampling and of its random numbers.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/rows/sample/random.h"
#include "kernels/rows/sample/reference.h"
#include "kernels/rows/sample/shape.h"

namespace orrery {
namespace {

TEST(ArgmaxReference, TakesTheLowestOfEqualLogits) {
  EXPECT_EQ(reference::argmax(std::vector<double>{1, 5, 3, 5}), 1);
  EXPECT_EQ(reference::argmax(std::vector<double>{-0.0, 0.0}), 0);
}

TEST(ArgmaxReference, PassesOverNan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(reference::argmax(std::vector<double>{nan, -3, -2}), 2);
  EXPECT_EQ(reference::argmax(std::vector<double>{nan, nan}), 0);
}

TEST(TopKReference, ProbabilitiesSumToOneAndFall) {
  const std::vector<double> logits{0.3, 2, -1, 2.5, 0.1, 1.7};
  const auto candidates = reference::top_k(logits, 4, 0.7);
  ASSERT_EQ(candidates.size(), 4U);
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    sum += candidates[i].probability;
    if (i == 0) continue;
    EXPECT_LE(candidates[i].probability, candidates[i - 1].probability);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  // The ratio of two probabilities is exp of the gap over the temperature.
  EXPECT_NEAR(candidates[0].probability / candidates[1].probability, std::exp(0.5 / 0.7), 1e-12);
}

TEST(TopKReference, PrefersLowIdsAmongEquals) {
  const auto candidates = reference::top_k(std::vector<double>{1, 2, 1, 1}, 2, 1);
  EXPECT_EQ(candidates[0].id, 1);
  EXPECT_EQ(candidates[1].id, 0);
}

TEST(TopKReference, OfOneIsArgmax) {
  const std::vector<double> logits{0.3, 2, 2, -1};
  EXPECT_EQ(reference::top_k(logits, 1, 1)[0].id, reference::argmax(logits));
}

TEST(ChooseReference, InvertsTheCumulatedProbabilities) {
  const std::array<reference::Candidate, 3> candidates{{{.id = 7, .probability = 0.5},
                                                        {.id = 3, .probability = 0.25},
                                                        {.id = 9, .probability = 0.25}}};
  EXPECT_EQ(reference::choose(candidates, 0), 7);
  EXPECT_EQ(reference::choose(candidates, 0.4999), 7);
  EXPECT_EQ(reference::choose(candidates, 0.5), 3);
  EXPECT_EQ(reference::choose(candidates, 0.9999), 9);
}

TEST(ArgmaxShape, SharesARowOnlyAmongBlocksThatFindWork) {
  for (const std::int64_t parts : {1, 1000, 16032, 200000}) {
    for (const std::int64_t seqs : {1, 8, 64, 132, 1024}) {
      const ArgmaxShape shape = argmax_shape(seqs, parts);
      EXPECT_LE(shape.cluster, kMostArgmaxCluster);
      EXPECT_LE(shape.threads, kMostArgmaxThreads);
      EXPECT_EQ(shape.cluster & (shape.cluster - 1), 0U);
      // Half as many blocks would have left each thread more than its four pieces.
      if (shape.cluster > 1) {
        EXPECT_LT(shape.cluster / 2 * 256 * 4, parts);
      }
    }
  }
}

TEST(ArgmaxShape, GivesManyRowsABlockEachAndFewRowsACluster) {
  EXPECT_EQ(argmax_shape(1024, 16032).cluster, 1U);
  EXPECT_EQ(argmax_shape(1, 16032).cluster, 8U);
  EXPECT_EQ(argmax_shape(1, 16032).threads, 512U);
}

TEST(Uniform, HasMeanOneHalfAndVarianceOneTwelfth) {
  constexpr int kDraws = 20000;
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double value = uniform(5, static_cast<std::uint64_t>(i));
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
    squares += value * value;
  }
  // Deviation of the mean: sqrt(1 / 12 / 20000) = 0.002.
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);
  EXPECT_NEAR(squares / kDraws - 0.25, 1.0 / 12, 0.01);
}

TEST(Uniform, DependsOnSeedAndCounter) {
  EXPECT_NE(uniform(1, 0), uniform(2, 0));
  EXPECT_NE(uniform(1, 0), uniform(1, 1));
}

TEST(Sampling, FrequenciesFollowTheProbabilities) {
  const auto candidates = reference::top_k(std::vector<double>{0, std::log(3.0)}, 2, 1);
  constexpr int kDraws = 20000;
  int chosen = 0;
  for (int i = 0; i < kDraws; ++i) {
    chosen += reference::choose(candidates, uniform(11, static_cast<std::uint64_t>(i)));
  }
  // Id 1 has 3/4; deviation sqrt(3 / 16 / 20000) = 0.003.
  EXPECT_NEAR(static_cast<double>(chosen) / kDraws, 0.75, 0.015);
}

}  // namespace
}  // namespace orrery

#include "sim/serve/random.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/units/inverse_normal.h"

namespace orrery {
namespace {

constexpr int kNumDraws = 200000;

struct Moments {
  double mean = 0;
  double variance = 0;
};

template <typename Draw>
Moments moments(Draw draw) {
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < kNumDraws; ++i) {
    const double value = draw();
    sum += value;
    squares += value * value;
  }
  const double mean = sum / kNumDraws;
  return {.mean = mean, .variance = squares / kNumDraws - mean * mean};
}

TEST(Random, SameSeedGivesTheSameNumbers) {
  Random a(7);
  Random b(7);
  Random other(8);
  EXPECT_EQ(a.next(), b.next());
  EXPECT_NE(a.next(), other.next());
}

TEST(Random, UniformHasMeanOneHalfAndVarianceOneTwelfth) {
  Random random(1);
  const Moments found = moments([&] { return random.uniform(); });
  EXPECT_NEAR(found.mean, 0.5, 4 * std::sqrt(1.0 / 12 / kNumDraws));
  EXPECT_NEAR(found.variance, 1.0 / 12, 1e-3);
}

TEST(Random, IntegersCoverBothEnds) {
  Random random(2);
  bool has_low = false;
  bool has_high = false;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t value = random.uniform_integer(3, 6);
    ASSERT_GE(value, 3);
    ASSERT_LE(value, 6);
    has_low = has_low || value == 3;
    has_high = has_high || value == 6;
  }
  EXPECT_TRUE(has_low && has_high);
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  Random random(3);
  const Moments found = moments([&] { return random.normal(); });
  EXPECT_NEAR(found.mean, 0, 4 / std::sqrt(kNumDraws));
  EXPECT_NEAR(found.variance, 1, 0.02);
}

TEST(Random, InverseNormalUndoesTheDistributionFunction) {
  for (const double x : {-6.0, -2.5, -0.3, 0.0, 1.0, 3.7}) {
    EXPECT_NEAR(inverse_normal(0.5 * std::erfc(-x / std::sqrt(2.0))), x, 1e-7);
  }
}

TEST(Random, ExponentialAndGammaHaveTheirMoments) {
  Random random(4);
  const Moments exponential = moments([&] { return random.exponential(); });
  EXPECT_NEAR(exponential.mean, 1, 0.02);
  EXPECT_NEAR(exponential.variance, 1, 0.05);
  for (const double shape : {0.25, 1.0, 4.0}) {  // mean = variance = shape
    const Moments gamma = moments([&] { return random.gamma(shape); });
    EXPECT_NEAR(gamma.mean, shape, 0.03 * shape + 0.005);
    EXPECT_NEAR(gamma.variance, shape, 0.06 * shape + 0.01);
  }
}

}  // namespace
}  // namespace orrery

// Laws of the rotary embedding.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/attention/rope/reference.h"

namespace orrery {
namespace {

constexpr std::size_t kDim = 16;
constexpr std::size_t kPositions = 64;

class RopeReference : public testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] std::vector<double> turn(std::vector<double> x, std::int32_t position) const {
    const reference::RopeLayout layout{
        .heads = 1, .head_dim = x.size(), .rotary_dim = kDim, .interleaved = GetParam()};
    return reference::rope(x, std::vector{position}, tables_, layout);
  }
  static std::vector<double> wave(double phase, std::size_t count = kDim) {
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = std::cos(static_cast<double>(i) + phase);
    return values;
  }
  static double product(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  }

 private:
  reference::RopeTables tables_ = reference::rope_tables(kPositions, kDim, 100);
};

// Tables are fp32: 1e-6.
TEST_P(RopeReference, PreservesNorms) {
  const auto x = wave(0.3);
  EXPECT_NEAR(product(turn(x, 17), turn(x, 17)), product(x, x), 1e-5);
}

TEST_P(RopeReference, InnerProductsDependOnTheDistanceAlone) {
  const auto query = wave(0.3);
  const auto key = wave(1.9);
  const double near = product(turn(query, 9), turn(key, 4));
  EXPECT_NEAR(product(turn(query, 49), turn(key, 44)), near, 1e-5);
  EXPECT_GT(std::abs(product(turn(query, 49), turn(key, 40)) - near), 1e-2);
}

TEST_P(RopeReference, PositionZeroTurnsNothing) { EXPECT_EQ(turn(wave(1), 0), wave(1)); }

TEST_P(RopeReference, LeavesTheRestOfTheHead) {
  const auto x = wave(0.5, kDim + 8);
  const auto y = turn(x, 5);
  for (std::size_t i = kDim; i < x.size(); ++i) EXPECT_EQ(y[i], x[i]);
  EXPECT_NE(y[1], x[1]);
}

TEST_P(RopeReference, TheFirstPairTurnsByThePosition) {
  std::vector<double> x(kDim);
  x[0] = 1;
  const auto y = turn(x, 3);
  EXPECT_NEAR(y[0], std::cos(3), 1e-6);
  EXPECT_NEAR(y[GetParam() ? 1 : kDim / 2], std::sin(3), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Layouts, RopeReference, testing::Bool(), [](const auto& layout) {
  return layout.param ? "interleaved" : "halves";
});

}  // namespace
}  // namespace orrery

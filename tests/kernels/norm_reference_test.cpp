// Laws of rms_norm and add_rms_norm.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/harness/rounding.h"
#include "kernels/rows/add_rms_norm/reference.h"
#include "kernels/rows/rms_norm/reference.h"

namespace orrery {
namespace {

std::vector<double> wave(std::size_t count, double phase) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::sin(0.7 * static_cast<double>(i) + phase) + 0.1;
  }
  return values;
}

TEST(RmsNormReference, RowsHaveUnitRmsUnderUnitWeights) {
  constexpr std::size_t kHidden = 37;
  const auto y = reference::rms_norm(wave(3 * kHidden, 0.2), std::vector<double>(kHidden, 1), 0);
  for (std::size_t row = 0; row < 3; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < kHidden; ++i)
      squares += y[row * kHidden + i] * y[row * kHidden + i];
    EXPECT_NEAR(squares / kHidden, 1, 1e-12);
  }
}

TEST(RmsNormReference, DoesNotChangeWhenARowIsScaled) {
  std::vector<double> x = wave(24, 1);
  const std::vector<double> weight = wave(24, 2);
  const auto y = reference::rms_norm(x, weight, 0);
  for (double& value : x) value *= 1000;
  const auto scaled = reference::rms_norm(x, weight, 0);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(scaled[i], y[i], 1e-12);
}

TEST(RmsNormReference, IsLinearInTheWeightsColumnByColumn) {
  const std::vector<double> x{3, 4};  // rms = sqrt(25 / 2)
  const auto y = reference::rms_norm(x, std::vector<double>{2, 0}, 0);
  EXPECT_NEAR(y[0], 2 * 3 / std::sqrt(12.5), 1e-12);
  EXPECT_EQ(y[1], 0);
}

TEST(RmsNormReference, EpsilonKeepsARowOfZerosZero) {
  for (const double y : reference::rms_norm(std::vector<double>(4), wave(4, 0), 1e-5)) {
    EXPECT_EQ(y, 0);
  }
}

TEST(RmsNormReference, RejectsRowsThatAreNotWhole) {
  EXPECT_THROW(reference::rms_norm(wave(7, 0), wave(3, 0), 0), std::invalid_argument);
}

TEST(AddRmsNormReference, IsTheNormOfTheRoundedSum) {
  const auto residual = round_bf16(wave(20, 0));
  const auto x = round_bf16(wave(20, 3));
  const auto weight = wave(10, 5);
  const auto result = reference::add_rms_norm(residual, x, weight, 1e-5);
  for (std::size_t i = 0; i < residual.size(); ++i) {
    EXPECT_EQ(result.residual[i], round_bf16(residual[i] + x[i]));
  }
  EXPECT_EQ(result.y, reference::rms_norm(result.residual, weight, 1e-5));
}

TEST(AddRmsNormReference, WithNothingToAddIsRmsNorm) {
  const auto residual = round_bf16(wave(12, 0));
  const auto weight = wave(4, 5);
  const auto result = reference::add_rms_norm(residual, std::vector<double>(12), weight, 1e-5);
  EXPECT_EQ(result.residual, residual);
  EXPECT_EQ(result.y, reference::rms_norm(residual, weight, 1e-5));
}

}  // namespace
}  // namespace orrery

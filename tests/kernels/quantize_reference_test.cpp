// Laws of quantisation to fp8.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dense/quantize/reference.h"

namespace orrery {
namespace {

std::vector<double> wave(std::size_t count) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::sin(1.3 * static_cast<double>(i)) * std::exp(0.01 * static_cast<double>(i));
  }
  return values;
}

TEST(QuantizeReference, TheLargestOfAGroupComesBackExactly) {
  const auto x = wave(64);
  const auto scales = reference::quantize_scales(x, 32, 32);
  const auto y = reference::quantize(x, scales, 32, 32);
  for (std::size_t row = 0; row < 2; ++row) {
    const auto largest = std::ranges::max_element(x.begin() + row * 32, x.begin() + (row + 1) * 32,
                                                  {}, [](double v) { return std::abs(v); });
    EXPECT_NEAR(y[static_cast<std::size_t>(largest - x.begin())], *largest, 1e-12);
    EXPECT_NEAR(scales[row] * 448, std::abs(*largest), 1e-12);
  }
}

TEST(QuantizeReference, ErrsByHalfAStepAtMost) {
  // 4 significant bits: 2^-4 of the value; below the normal range, 2^-10 of a scale.
  const auto x = wave(300);
  const auto scales = reference::quantize_scales(x, 300, 128);
  const auto y = reference::quantize(x, scales, 300, 128);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double step = std::max(std::abs(x[i]) / 16, scales[i / 128] / 1024);
    EXPECT_LE(std::abs(y[i] - x[i]), step * (1 + 1e-12)) << i;
  }
}

TEST(QuantizeReference, TheLastGroupOfARowMayBeShorter) {
  // Rows of 5 in groups of 2: 3 scales each.
  const std::vector<double> x{1, 2, 3, 4, 5, 10, 20, 30, 40, 50};
  const auto scales = reference::quantize_scales(x, 5, 2);
  const std::vector<double> peaks{2, 4, 5, 20, 40, 50};
  ASSERT_EQ(scales.size(), peaks.size());
  for (std::size_t i = 0; i < peaks.size(); ++i) EXPECT_DOUBLE_EQ(scales[i] * 448, peaks[i]);
}

TEST(QuantizeReference, ARowOfZerosHasScaleZeroAndStaysZero) {
  const std::vector<double> x(8);
  const auto scales = reference::quantize_scales(x, 8, 8);
  EXPECT_EQ(scales[0], 0);
  EXPECT_EQ(reference::quantize(x, scales, 8, 8), x);
}

TEST(QuantizeReference, ScalesFollowTheInput) {
  auto x = wave(128);
  const auto before = reference::quantize_scales(x, 128, 128);
  for (double& value : x) value *= 3;
  EXPECT_NEAR(reference::quantize_scales(x, 128, 128)[0], 3 * before[0], 1e-12);
}

}  // namespace
}  // namespace orrery

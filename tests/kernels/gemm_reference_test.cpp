#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "kernels/dense/gemm/reference.h"

namespace orrery {
namespace {

using reference::gemm;

// A value for each (row, column) that is not symmetric in them.
std::vector<double> matrix(int rows, int columns, double slope) {
  std::vector<double> values;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      values.push_back(1 + slope * row - 0.5 * column);
    }
  }
  return values;
}

TEST(GemmReference, AgainstTheIdentityReturnsX) {
  constexpr int kTokens = 3;
  constexpr std::size_t kSize = 5;
  std::vector<double> identity(kSize * kSize);
  for (std::size_t i = 0; i < kSize; ++i) identity[i * kSize + i] = 1;
  const std::vector<double> x = matrix(kTokens, kSize, 10);
  EXPECT_EQ(gemm(x, identity, kTokens, kSize, kSize), x);
}

// Row i of x is e_i, row j of w is j everywhere: y[i, j] = j. Were w taken as [k, n], y[i, j] = i.
TEST(GemmReference, TakesWeightsByOutputColumn) {
  const std::vector<double> x{1, 0, 0, 1};
  const std::vector<double> w{0, 0, 1, 1, 2, 2};
  EXPECT_EQ(gemm(x, w, 2, 3, 2), (std::vector<double>{0, 1, 2, 0, 1, 2}));
}

// The sum of k ones times ones is k, for k around the width of the inner loop.
TEST(GemmReference, AddsUpAllOfK) {
  for (int k = 1; k <= 9; ++k) {
    const std::vector<double> ones(k, 1.0);
    EXPECT_EQ(gemm(ones, ones, 1, 1, k), std::vector<double>{static_cast<double>(k)});
  }
}

// (a x)(b w)^T = a b x w^T, row by row and column by column.
TEST(GemmReference, ScalesRowsAndColumns) {
  const std::vector<double> x = matrix(2, 4, 3);
  const std::vector<double> w = matrix(3, 4, -2);
  const std::vector<double> x_scale{2, 4};
  const std::vector<double> w_scale{0.5, 1, 8};
  const std::vector<double> plain = gemm(x, w, 2, 3, 4);
  const std::vector<double> scaled = gemm(x, w, 2, 3, 4, {.x = x_scale, .w = w_scale});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(scaled[i], plain[i] * x_scale[i / 3] * w_scale[i % 3]);
}

TEST(GemmReference, AppliesASingleScaleToAll) {
  const std::vector<double> x = matrix(2, 4, 3);
  const std::vector<double> w = matrix(3, 4, -2);
  const std::vector<double> two{2};
  const std::vector<double> four{4};
  const std::vector<double> plain = gemm(x, w, 2, 3, 4);
  const std::vector<double> scaled = gemm(x, w, 2, 3, 4, {.x = two, .w = four});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(scaled[i], 8 * plain[i]);
}

TEST(GemmReference, RefusesSizesThatDoNotFit) {
  const std::vector<double> six(6);
  const std::vector<double> two(2);
  EXPECT_THROW(gemm(six, six, 2, 3, 4), std::invalid_argument);
  EXPECT_THROW(gemm(six, six, 3, 3, 2, {.x = two}), std::invalid_argument);
  EXPECT_THROW(gemm(six, six, 3, 3, 2, {.w = two}), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

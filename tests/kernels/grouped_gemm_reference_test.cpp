#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/experts/grouped_gemm/reference.h"

namespace orrery {
namespace {

using reference::grouped_gemm;

// w of group g is g + 1 times the identity: y is x, multiplied by its row's group + 1.
std::vector<double> multiples_of_identity(int groups, int size) {
  std::vector<double> w(static_cast<std::size_t>(groups * size * size));
  for (int group = 0; group < groups; ++group) {
    for (int i = 0; i < size; ++i) w[(group * size + i) * size + i] = group + 1;
  }
  return w;
}

TEST(GroupedGemmReference, EachRowMeetsTheWeightsOfItsGroup) {
  const std::vector<double> x{1, 2, 3, 4, 5, 6};
  std::vector<double> y(6);
  grouped_gemm(x, multiples_of_identity(3, 2), std::vector<std::int32_t>{1, 0, 2}, 2, 2, y);
  EXPECT_EQ(y, (std::vector<double>{1, 2, 9, 12, 15, 18}));
}

TEST(GroupedGemmReference, RowsPastTheSumStayAsTheyAre) {
  const std::vector<double> x{1, 2, 3, 4, 5, 6};
  std::vector<double> y(6, -1);
  grouped_gemm(x, multiples_of_identity(2, 2), std::vector<std::int32_t>{0, 1}, 2, 2, y);
  EXPECT_EQ(y, (std::vector<double>{2, 4, -1, -1, -1, -1}));
}

TEST(GroupedGemmReference, CountsOutOfRangeAreClamped) {
  const std::vector<double> x{1, 2, 3, 4};
  std::vector<double> y(4);
  grouped_gemm(x, multiples_of_identity(3, 2), std::vector<std::int32_t>{-5, 0x7FFFFFFF, 9}, 2, 2,
               y);
  EXPECT_EQ(y, (std::vector<double>{2, 4, 6, 8}));
}

// Scales multiply: y[row, j] is x_scale[row] w_scale[group, j] times what it was.
TEST(GroupedGemmReference, ScalesAreOfTheRowAndOfTheGroupsColumn) {
  const std::vector<double> x{1, 2, 3, 4};
  const std::vector<double> x_scale{2, 3};
  const std::vector<double> w_scale{1, 1, 5, 7};
  std::vector<double> y(4);
  grouped_gemm(x, multiples_of_identity(2, 2), std::vector<std::int32_t>{1, 1}, 2, 2, y,
               {.x = x_scale, .w = w_scale});
  EXPECT_EQ(y, (std::vector<double>{2, 4, 2 * 3 * 3 * 5, 2 * 4 * 3 * 7}));
}

TEST(GroupedGemmReference, RefusesSizesThatDoNotFit) {
  const std::vector<double> x{1, 2, 3, 4};
  std::vector<double> y(4);
  const std::vector<double> w = multiples_of_identity(2, 2);
  const std::vector<double> three(3);
  const std::vector<std::int32_t> counts{1, 1};
  EXPECT_THROW(grouped_gemm(x, w, counts, 3, 2, y), std::invalid_argument);
  EXPECT_THROW(grouped_gemm(x, w, counts, 2, 2, y, {.x = w}), std::invalid_argument);
  EXPECT_THROW(grouped_gemm(x, w, counts, 2, 2, y, {.w = three}), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

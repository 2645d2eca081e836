// The reference of batched_gemm: GEMMs of heads that do not mix.

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/dense/batched_gemm/reference.h"
#include "kernels/dense/gemm/reference.h"

namespace orrery::reference {
namespace {

std::vector<double> one_after_another(std::size_t count) {
  std::vector<double> values(count);
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

TEST(BatchedGemmReference, OfOneHeadIsAGemm) {
  const std::vector<double> x = one_after_another(3 * 4);
  const std::vector<double> w = one_after_another(2 * 4);
  EXPECT_EQ(batched_gemm(x, w, {.batch = 1, .m = 3, .n = 2, .k = 4}), gemm(x, w, 3, 2, 4));
}

TEST(BatchedGemmReference, HeadsOfARowLieOneBehindTheOther) {
  // k = n = 1: y[row][head] = x[row][head] w[head].
  const std::vector<double> y =
      batched_gemm(std::vector<double>{1, 2, 3, 4}, std::vector<double>{10, 100},
                   {.batch = 2, .m = 2, .n = 1, .k = 1});
  EXPECT_EQ(y, (std::vector<double>{10, 200, 30, 400}));
}

TEST(BatchedGemmReference, TransposedWeightsMultiplyFromTheOtherSide) {
  // One row (1, 2) with w = ((1, 2, 3), (4, 5, 6)) as [k, n]: (1 + 8, 2 + 10, 3 + 12).
  const std::vector<double> y =
      batched_gemm(std::vector<double>{1, 2}, one_after_another(6),
                   {.batch = 1, .m = 1, .n = 3, .k = 2, .w_is_transposed = true});
  EXPECT_EQ(y, (std::vector<double>{9, 12, 15}));
}

TEST(BatchedGemmReference, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(batched_gemm(one_after_another(5), one_after_another(6),
                            {.batch = 1, .m = 2, .n = 2, .k = 3}),
               std::invalid_argument);
}

TEST(BatchedGemmReference, MatricesOfABatchLieOneBehindTheOther) {
  // k = n = 1: y[matrix][row] = x[matrix][row] w[matrix].
  const std::vector<double> y =
      batched_gemm(std::vector<double>{1, 2, 3, 4}, std::vector<double>{10, 100},
                   {.batch = 2, .m = 2, .n = 1, .k = 1, .is_by_matrix = true});
  EXPECT_EQ(y, (std::vector<double>{10, 20, 300, 400}));
}

}  // namespace
}  // namespace orrery::reference

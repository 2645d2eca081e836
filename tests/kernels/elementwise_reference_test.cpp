// Laws of silu_mul, embedding and kv_append.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/attention/kv_append/reference.h"
#include "kernels/rows/embedding/reference.h"
#include "kernels/rows/silu_mul/reference.h"

namespace orrery {
namespace {

TEST(SiluMulReference, OfZeroGatesIsZero) {
  for (const double y : reference::silu_mul(std::vector<double>{0, 0, 3, -4}, 2)) EXPECT_EQ(y, 0);
}

TEST(SiluMulReference, SiluOfAValueLessThatOfItsNegativeIsTheValue) {
  // v / (1 + e^-v) + v / (1 + e^v) = v
  for (const double v : {0.1, 1.0, 7.0, 30.0}) {
    const auto y = reference::silu_mul(std::vector<double>{v, -v, 1, 1}, 2);
    EXPECT_NEAR(y[0] - y[1], v, 1e-12);
  }
}

TEST(SiluMulReference, TakesGatesFromTheFirstHalfOfEachRow) {
  // Two rows of ffn = 1; silu(100) = 100 in double.
  const auto y = reference::silu_mul(std::vector<double>{100, 2, 100, 3}, 1);
  EXPECT_DOUBLE_EQ(y[0], 200);
  EXPECT_DOUBLE_EQ(y[1], 300);
}

TEST(SiluMulReference, RejectsOddRows) {
  EXPECT_THROW(reference::silu_mul(std::vector<double>(6), 2), std::invalid_argument);
}

TEST(EmbeddingReference, GathersRowsAndGivesZerosOutside) {
  const std::vector<double> table{1, 2, 3, 4};
  EXPECT_EQ(reference::embedding(std::vector{1, -1, 0, 2}, table, 2),
            (std::vector<double>{3, 4, 0, 0, 1, 2, 0, 0}));
}

TEST(KvAppendReference, WritesEachTokenToItsSlotAndNothingElse) {
  const std::vector<double> cache{9, 9, 9, 9, 9, 9};
  const auto after = reference::kv_append(cache, std::vector<double>{1, 2, 3, 4, 5, 6},
                                          std::vector<std::int64_t>{2, -1, 0}, 2);
  EXPECT_EQ(after, (std::vector<double>{5, 6, 9, 9, 1, 2}));
}

TEST(KvAppendReference, RejectsSlotsOutsideOfTheCache) {
  EXPECT_THROW(reference::kv_append(std::vector<double>(4), std::vector<double>(2),
                                    std::vector<std::int64_t>{2}, 2),
               std::invalid_argument);
}

}  // namespace
}  // namespace orrery

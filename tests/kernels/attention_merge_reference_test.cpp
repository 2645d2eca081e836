#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention_merge/reference.h"

namespace orrery::reference {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// One query with these scores and values (one element each), over keys [first, last).
struct Part {
  double out = 0;
  double lse = kNone;
};
Part attend(std::size_t first, std::size_t last) {
  const std::vector<double> scores{0.5, -2, 3, 1, 0.25};
  const std::vector<double> values{1, 4, -2, 8, 0.5};
  double sum = 0;
  double out = 0;
  for (std::size_t key = first; key < last; ++key) {
    sum += std::exp(scores[key]);
    out += std::exp(scores[key]) * values[key];
  }
  return {.out = sum > 0 ? out / sum : 0, .lse = std::log(sum)};
}

TEST(AttentionMerge, PartsOfTheKeysGiveAttentionOverAllOfThem) {
  const Part whole = attend(0, 5);
  const Part a = attend(0, 2);
  const Part b = attend(2, 4);
  const Part c = attend(4, 5);
  const std::vector<double> out =
      attention_merge(std::vector{a.out, b.out, c.out}, std::vector{a.lse, b.lse, c.lse}, 3, 1);
  ASSERT_EQ(out.size(), 1U);
  EXPECT_NEAR(out[0], whole.out, 1e-12);
}

TEST(AttentionMerge, APartWithoutKeysHasNoWeightEvenWhereItIsNotANumber) {
  const Part whole = attend(0, 5);
  const std::vector<double> out =
      attention_merge(std::vector{whole.out, std::nan("")}, std::vector{whole.lse, kNone}, 2, 1);
  EXPECT_EQ(out, std::vector{whole.out});
}

TEST(AttentionMerge, ARowThatNoPartHasKeysOfIsZero) {
  EXPECT_EQ(attention_merge(std::vector<double>{7, 9}, std::vector{kNone, kNone}, 2, 1),
            std::vector<double>{0});
}

TEST(AttentionMerge, RowsKeepTheirOwnWeights) {
  // Two heads of two elements: equal weights give the mean, a weight of all the part itself.
  const std::vector<double> x{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(attention_merge(x, std::vector<double>{0, kNone, 0, 0}, 2, 2),
            (std::vector<double>{3, 4, 7, 8}));
}

}  // namespace
}  // namespace orrery::reference

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/experts/grouped_gemm_scatter/reference.h"

namespace orrery {
namespace {

// Two groups of one output column each: w = 2 and w = 3, so y = 2 x or 3 x.
const std::vector<double> kW{2, 3};

// Rows 1, 4 | 5 are 2, 8 | 15; tokens 1, 0 | 1 take 8 and 2 + 15, onto 100 and 200.
TEST(GroupedGemmScatterReference, RowsAreAddedToTheirTokens) {
  const std::vector<double> x{1, 4, 5};
  const std::vector<std::int32_t> counts{2, 1};
  const std::vector<std::int32_t> tokens{1, 0, 1};
  std::vector<double> out{100, 200, 300};
  reference::grouped_gemm_scatter(x, kW, counts, 1, 1, {.tokens = tokens}, out);
  EXPECT_EQ(out, (std::vector<double>{108, 217, 300}));
}

// 2 at weight 1/2 and 15 at weight 2.
TEST(GroupedGemmScatterReference, RowsAreMultipliedByTheirWeights) {
  const std::vector<double> x{1, 5};
  const std::vector<std::int32_t> counts{1, 1};
  const std::vector<std::int32_t> tokens{0, 0};
  const std::vector<double> weights{0.5, 2};
  std::vector<double> out{0};
  reference::grouped_gemm_scatter(x, kW, counts, 1, 1, {.tokens = tokens, .weights = weights}, out);
  EXPECT_EQ(out, (std::vector<double>{31}));
}

TEST(GroupedGemmScatterReference, RowsPastTheSumOfCountsAddNothing) {
  const std::vector<double> x{1, 7};
  const std::vector<std::int32_t> counts{0, 1};
  const std::vector<std::int32_t> tokens{0, -1};
  std::vector<double> out{10};
  reference::grouped_gemm_scatter(x, kW, counts, 1, 1, {.tokens = tokens}, out);
  EXPECT_EQ(out, (std::vector<double>{13}));
}

TEST(GroupedGemmScatterReference, RefusesATokenThatOutDoesNotHave) {
  const std::vector<double> x{1};
  const std::vector<std::int32_t> counts{1, 0};
  std::vector<double> out{10};
  for (const std::int32_t token : {-1, 1}) {
    const std::vector<std::int32_t> tokens{token};
    EXPECT_THROW(reference::grouped_gemm_scatter(x, kW, counts, 1, 1, {.tokens = tokens}, out),
                 std::invalid_argument);
  }
}

}  // namespace
}  // namespace orrery

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/experts/grouped_gemm_gather/reference.h"
#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

// Two groups of one output column each: w = 2 and w = 3.
const std::vector<double> kTwoGroups{2, 3};

// Tokens 10 and 20: rows 20, 10 | 20 are 40, 20 | 60.
TEST(GroupedGemmGatherReference, RowsAreThoseOfTheirTokens) {
  const std::vector<double> x{10, 20};
  const std::vector<std::int32_t> counts{2, 1};
  const std::vector<std::int32_t> tokens{1, 0, 1};
  std::vector<double> y{0, 0, 0};
  reference::grouped_gemm_gather(x, {.tokens = tokens}, kTwoGroups, counts, 1, 1, y);
  EXPECT_EQ(y, (std::vector<double>{40, 20, 60}));
}

// 20 at weight 1/2 and 10 at weight 2.
TEST(GroupedGemmGatherReference, RowsAreMultipliedByTheirWeights) {
  const std::vector<double> x{10, 20};
  const std::vector<std::int32_t> counts{1, 1};
  const std::vector<std::int32_t> tokens{1, 0};
  const std::vector<double> weights{0.5, 2};
  std::vector<double> y{0, 0};
  reference::grouped_gemm_gather(x, {.tokens = tokens, .weights = weights}, kTwoGroups, counts, 1,
                                 1, y);
  EXPECT_EQ(y, (std::vector<double>{20, 60}));
}

TEST(GroupedGemmGatherReference, ATokenThatIsNotThereHasZerosAndRowsPastTheCountsStay) {
  const std::vector<double> x{10};
  const std::vector<std::int32_t> counts{2, 0};
  const std::vector<std::int32_t> tokens{-1, 0, 0};
  std::vector<double> y{7, 7, 7};
  reference::grouped_gemm_gather(x, {.tokens = tokens}, kTwoGroups, counts, 1, 1, y);
  EXPECT_EQ(y, (std::vector<double>{0, 20, 7}));
}

TEST(GroupedGemmGatherReference, RefusesXOfBrokenRows) {
  const std::vector<double> x{10, 20, 30};
  const std::vector<std::int32_t> counts{1, 0};
  const std::vector<std::int32_t> tokens{0};
  const std::vector<double> w{2, 2, 3, 3};
  std::vector<double> y{0};
  EXPECT_THROW(reference::grouped_gemm_gather(x, {.tokens = tokens}, w, counts, 1, 2, y),
               std::invalid_argument);
}

// Of 8 rows of each of 100 tokens, gather_mul writes 800 rows of k and grouped_gemm reads them;
// what is left are the tokens' own, and a token and a weight for each row.
TEST(GroupedGemmGather, SavesTheRowsInBetween) {
  const auto bytes = [](const char* kernel, const Dims& dims) {
    const Work work = work_of({.kernel = kernel, .dtype = DType::kBf16, .dims = dims});
    return work.bytes_read.value() + work.bytes_written.value();
  };
  const Dims gemm{
      {"rows", 800, ""}, {"n", 64, ""}, {"k", 512, ""}, {"groups", 16, ""}, {"active", 16, ""}};
  Dims fused = gemm;
  fused.push_back({"tokens", 100, ""});
  const double apart =
      bytes("grouped_gemm", gemm) +
      bytes("gather_mul", {{"tokens", 100, ""}, {"rows", 800, ""}, {"hidden", 512, ""}});
  EXPECT_EQ(apart - bytes("grouped_gemm_gather", fused), 2 * 800 * 512 * 2);
}

}  // namespace
}  // namespace orrery

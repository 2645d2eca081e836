// What fused_moe allocates on each GPU, by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

// Two ranks of 8 experts: 2 * 100 * 2 rows of x may come to one, 100 * 2 results go back to it.
TEST(FusedMoeBuffers, AreTheRowsTablesAndCountersByHand) {
  const FusedMoeShape shape{
      .tokens = 100, .hidden = 256, .ffn = 128, .experts = 16, .topk = 2, .ranks = 2};
  const FusedMoeMemory memory = memory_of(fused_moe_buffers(shape, 132));
  EXPECT_EQ(memory.rows.value(), 2 * 400 * 256);
  EXPECT_EQ(memory.between.value(), 2 * 400 * 128);
  EXPECT_EQ(memory.results.value(), 2 * 200 * 256);
  EXPECT_EQ(memory.tables.value(), 200 * (3 * 4 + 8));
  // 17 counts of each of 132 blocks and of two launches of two ranks; four counters of each tile:
  // 400 / 160 whole ones and one more of each expert; one of each block, and 16 logits of 100
  // tokens in 32 parts at most; 40 bytes of launch numbers and tickets.
  EXPECT_EQ(memory.counters.value(),
            8 * 17 * (132 + 4) + 4 * (4 * (2 + 16) + 132) + 4 * 32 * 100 * 16 + 40);
  EXPECT_EQ(memory.total(),
            memory.rows + memory.between + memory.results + memory.tables + memory.counters);
}

TEST(FusedMoeBuffers, OfOneRankHaveNoResultsOfOthers) {
  const FusedMoeShape shape{.tokens = 7, .hidden = 64, .ffn = 32, .experts = 4, .topk = 3};
  const FusedMoeMemory memory = memory_of(fused_moe_buffers(shape, 1));
  EXPECT_EQ(memory.results.value(), 0);
  EXPECT_EQ(memory.rows.value(), 2 * 21 * 64);
  FusedMoeShape none = shape;
  none.tokens = 0;
  EXPECT_EQ(memory_of(fused_moe_buffers(none, 1)).total().value(), 0);
}

// Rows of one byte with a scale; what lies between the layers as bf16 and as fp8, with a scale and
// the largest value of each row. Results are bf16, so they are not the rows of one rank.
TEST(FusedMoeBuffers, OfFp8HaveScalesOfRows) {
  const FusedMoeShape shape{
      .tokens = 7, .hidden = 64, .ffn = 32, .experts = 4, .topk = 3, .is_fp8 = true};
  const FusedMoeMemory memory = memory_of(fused_moe_buffers(shape, 1));
  EXPECT_EQ(memory.rows.value(), 21 * 64);
  EXPECT_EQ(memory.between.value(), (2 + 1) * 21 * 32);
  EXPECT_EQ(memory.results.value(), 2 * 21 * 64);
  EXPECT_EQ(memory.tables.value(), 21 * (3 * 4 + 8) + 3 * 4 * 21);
}

// A rank with fewer experts than a token chooses gets no more rows of it than it has experts.
TEST(FusedMoeBuffers, HaveRoomForNoMoreRowsThanThereCanBe) {
  FusedMoeShape shape{.tokens = 10, .hidden = 8, .ffn = 8, .experts = 8, .topk = 8, .ranks = 8};
  EXPECT_EQ(fused_moe_buffers(shape, 1).rows, 8U * 10 * 1 * 8);
  shape.ranks = 2;
  EXPECT_EQ(fused_moe_buffers(shape, 1).rows, 2U * 10 * 4 * 8);
}

// Each rank has two shared experts for its own tokens, which make two more results of each.
TEST(FusedMoeBuffers, HaveRoomForSharedExperts) {
  const FusedMoeShape shape{
      .tokens = 100, .hidden = 256, .ffn = 128, .experts = 16, .topk = 2, .ranks = 2, .shared = 2};
  const FusedMoeMemory memory = memory_of(fused_moe_buffers(shape, 132));
  EXPECT_EQ(memory.rows.value(), 2 * (400 + 200) * 256);
  EXPECT_EQ(memory.results.value(), 2 * 400 * 256);
}

// As processes map it, in multiples of 1,024 bytes: 200 of them rows, no scales, 100 of results,
// 544 bytes of two times two times 17 starts, and four counters of 18 tiles and one of 132 blocks.
TEST(FusedMoeArea, HoldsEachBufferBehindTheOneBefore) {
  const FusedMoeShape shape{
      .tokens = 100, .hidden = 256, .ffn = 128, .experts = 16, .topk = 2, .ranks = 2};
  const FusedMoeArea area = fused_moe_area(fused_moe_buffers(shape, 132));
  EXPECT_EQ(area.row_scales, 200U * 1024);
  EXPECT_EQ(area.results, 200U * 1024);
  EXPECT_EQ(area.starts, 300U * 1024);
  EXPECT_EQ(area.counters, 301U * 1024);
  EXPECT_EQ(area.bytes, 301U * 1024 + 4 * (4 * 18 + 132));
}

// 1,344 bytes of rows, 252 of scales, 2,688 of results, 80 of starts.
TEST(FusedMoeArea, HasScalesOfFp8InAPlaceOfTheirOwn) {
  const FusedMoeShape shape{
      .tokens = 7, .hidden = 64, .ffn = 32, .experts = 4, .topk = 3, .is_fp8 = true};
  const FusedMoeArea area = fused_moe_area(fused_moe_buffers(shape, 1));
  EXPECT_EQ(area.row_scales, 2U * 1024);
  EXPECT_EQ(area.results, 3U * 1024);
  EXPECT_EQ(area.starts, 6U * 1024);
  EXPECT_EQ(area.counters, 7U * 1024);
  EXPECT_EQ(area.bytes, 7U * 1024 + 4 * (4 * 4 + 1));
}

// A rank writes where the other's buffers are by its own count of SMs.
TEST(FusedMoeArea, BeginsAllBuffersAtTheSamePlacesWhateverTheGpu) {
  const FusedMoeShape shape{
      .tokens = 100, .hidden = 264, .ffn = 128, .experts = 400, .topk = 2, .ranks = 2};
  const FusedMoeArea small = fused_moe_area(fused_moe_buffers(shape, 78));
  const FusedMoeArea large = fused_moe_area(fused_moe_buffers(shape, 132));
  EXPECT_EQ(small.row_scales, large.row_scales);
  EXPECT_EQ(small.results, large.results);
  EXPECT_EQ(small.starts, large.starts);
  EXPECT_EQ(small.counters, large.counters);
  EXPECT_LT(small.bytes, large.bytes);
}

// An expert takes no more of a rank than its capacity: ceil(0.5 * 100 * 2 / 16) = 7 rows.
TEST(FusedMoeBuffers, OfCapacitiesAreSmaller) {
  FusedMoeShape shape{
      .tokens = 100, .hidden = 256, .ffn = 128, .experts = 16, .topk = 2, .ranks = 2};
  shape.capacity_factor = 0.5;
  EXPECT_EQ(capacity_of(shape, 100), 7);
  EXPECT_EQ(capacity_of(shape, 8), 1);
  EXPECT_EQ(most_rows(shape), 2 * 8 * 7);
  shape.capacity_factor = 100;
  EXPECT_EQ(capacity_of(shape, 100), 100);
  EXPECT_EQ(most_rows(shape), 400);
  shape.capacity_factor = -1;
  EXPECT_THROW(require_fused_moe_shape(shape), std::invalid_argument);
}

// Few tokens leave SMs over, so 64 of them are shared out among as many as have four steps of 64
// columns each to do; of many each block makes its own.
TEST(FusedMoeBuffers, MakeLogitsOfFewTokensInParts) {
  const FusedMoeShape shape{.tokens = 8192, .hidden = 2048, .ffn = 8, .experts = 8, .topk = 2};
  const auto parts = [&](std::int64_t tokens) { return logit_parts(shape, tokens, 132); };
  EXPECT_EQ(parts(1).parts, 8);
  EXPECT_EQ(parts(1).steps, 4);
  EXPECT_EQ(parts(1024).parts, 8);
  EXPECT_EQ(parts(2048).parts, 4);
  EXPECT_EQ(parts(4096).parts, 2);
  EXPECT_EQ(parts(8192).parts, 1);
  EXPECT_EQ(parts(8192).steps, 32);
  for (std::int64_t tokens = 1; tokens <= 8192; tokens += 37) {
    const LogitParts found = parts(tokens);
    EXPECT_GE(found.parts * found.steps, 32);
    EXPECT_LT((found.parts - 1) * found.steps, 32);
    EXPECT_TRUE(found.parts == 1 || found.parts * ((tokens + 63) / 64) <= 132) << tokens;
  }
}

TEST(FusedMoeBuffers, AreWhatPlansCount) {
  const Dims dims{{"tokens", 1000}, {"hidden", 2048},  {"ffn", 768},    {"experts_total", 128},
                  {"topk", 8},      {"activation", 0}, {"experts", 32}, {"shared", 0}};
  const FusedMoeMemory memory =
      memory_of(fused_moe_buffers(fused_moe_shape(DType::kBf16, dims), 132));
  const Bytes counted = kernel_spec("fused_moe").workspace(DType::kBf16, dims);
  EXPECT_EQ(counted, memory.rows + memory.between + memory.results);
  EXPECT_LT(memory.total(), 1.03 * counted);
}

// 4 ranks of 32 experts, each of which takes ceil(0.5 * 1000 * 8 / 128) = 32 rows of a rank's
// 1,000 tokens in place of all: 4,096 rows in place of 32,000.
TEST(FusedMoeBuffers, OfPlansWithACapacityAreSmaller) {
  Dims dims{{"tokens", 1000}, {"hidden", 2048},  {"ffn", 768},    {"experts_total", 128},
            {"topk", 8},      {"activation", 0}, {"experts", 32}, {"shared", 0}};
  dims.push_back({"capacity_percent", 50});
  EXPECT_EQ(fused_moe_shape(DType::kBf16, dims).capacity_factor, 0.5);
  const Bytes counted = kernel_spec("fused_moe").workspace(DType::kBf16, dims);
  EXPECT_EQ(counted, Bytes(2.0 * (4096 * (2048 + 768) + 8000 * 2048)));
}

// The sum over n of min(n, 2) C(3, n) / 8: (3 + 2 * 3 + 2) / 8.
TEST(FusedMoeRows, TheMeanOfABinomialCutIsByHand) {
  EXPECT_NEAR(mean_at_most(3, 0.5, 2), 11.0 / 8, 1e-12);
  EXPECT_EQ(mean_at_most(3, 0.5, 3), 1.5);
  EXPECT_EQ(mean_at_most(10, 1, 4), 4);
  EXPECT_NEAR(mean_at_most(1000, 0.01, 1), 1 - std::pow(0.99, 1000), 1e-12);
}

// Where the normal distribution takes over they differ by a thousandth; no more than the mean or
// the cut, and more of more.
TEST(FusedMoeRows, TheMeanOfABinomialCutGrowsWithTheCut) {
  for (const double most : {40.0, 55.0, 60.0, 65.0, 80.0}) {
    EXPECT_NEAR(mean_at_most(3840, 1.0 / 64, most), mean_at_most(3841, 1.0 / 64, most), 0.06);
  }
  for (const double mean : {0.5, 20.0, 59.0, 61.0, 5000.0}) {
    double before = 0;
    for (int tenths = 1; tenths <= 40; ++tenths) {
      const double most = std::ceil(mean * tenths / 10);
      const double found = mean_at_most(64 * mean, 1.0 / 64, most);
      EXPECT_GE(found, before * (1 - 1e-12)) << mean << " " << most;
      EXPECT_LE(found, std::min(mean, most) * (1 + 1e-12)) << mean << " " << most;
      before = found;
    }
    EXPECT_NEAR(before, mean, 0.05 * mean);
  }
}

// A factor of 1 keeps as many rows as even choices have, less what chance puts beyond them: a
// normal number is 0.399 deviations above its mean on average.
TEST(FusedMoeRows, ACapacityTakesTheRowsBeyondIt) {
  FusedMoeShape shape{.tokens = 65536, .hidden = 8, .ffn = 8, .experts = 128, .topk = 8};
  const double all = 65536 * 8;
  EXPECT_EQ(mean_rows(shape, 65536), all);
  shape.capacity_factor = 128;
  EXPECT_EQ(mean_rows(shape, 65536), all);
  shape.capacity_factor = 1;
  const double deviation = std::sqrt(4096.0 * (1 - 8.0 / 128));
  EXPECT_NEAR(mean_rows(shape, 65536), 128 * (4096 - 0.39894 * deviation), 128 * 0.1);
  shape.capacity_factor = 0.5;
  EXPECT_NEAR(mean_rows(shape, 65536), all / 2, 1e-6 * all);
}

}  // namespace
}  // namespace orrery

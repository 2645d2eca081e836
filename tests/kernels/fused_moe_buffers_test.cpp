// What fused_moe allocates on each GPU, by hand.

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace orrery

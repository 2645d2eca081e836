#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/dense/gemm/choice.h"

namespace orrery {
namespace {

constexpr int kSharedBytesPerBlock = 227 * 1024;  // of sm_90

std::vector<GemmShape> streaming_shapes() {
  std::vector<GemmShape> shapes;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t m : {1, 7, 8, 9, 16, 17, 32, 33, 64}) {
      for (const std::int64_t n : {1, 63, 1024, 4096, 8192, 10240, 28672, 32003, 128256}) {
        for (const std::int64_t k : {16, 128, 4096, 8192, 28672}) {
          shapes.push_back({.dtype = dtype, .m = m, .n = n, .k = k});
        }
      }
    }
  }
  return shapes;
}

std::int64_t row_tiles(const GemmShape& shape, const StreamingTile& tile) {
  return (shape.n + tile.rows - 1) / tile.rows;
}

TEST(GemmChoice, ReadsTheShapeOfAnOp) {
  const KernelOp op{
      .kernel = "gemm", .dtype = DType::kFp8, .dims = {{"m", 3}, {"n", 5120}, {"k", 2048}}};
  for (const bool has_bias : {false, true}) {
    const GemmShape expected{.dtype = DType::kFp8,
                             .m = 3,
                             .n = 5120,
                             .k = 2048,
                             .scaling = Fp8Scaling::kRowwise,
                             .has_bias = has_bias};
    EXPECT_EQ(gemm_shape(op, has_bias), expected);
  }
}

TEST(GemmChoice, RefusesWhatNoKernelTakes) {
  const GemmShape good{.m = 2, .n = 3, .k = 4};
  EXPECT_NO_THROW(require_gemm_shape(good));
  for (GemmShape bad :
       {GemmShape{.dtype = DType::kFp16, .m = 2, .n = 3, .k = 4},
        GemmShape{.m = -1, .n = 3, .k = 4}, GemmShape{.m = 2, .n = -3, .k = 4},
        GemmShape{.m = 2, .n = 3, .k = 0}, GemmShape{.m = 2, .n = std::int64_t{1} << 31, .k = 4}}) {
    EXPECT_THROW(require_gemm_shape(bad), std::invalid_argument);
  }
}

TEST(GemmChoice, EmptyOutputsAreShapes) {
  EXPECT_NO_THROW(require_gemm_shape({.m = 0, .n = 3, .k = 4}));
  EXPECT_NO_THROW(require_gemm_shape({.m = 2, .n = 0, .k = 4}));
}

// The copy engine takes rows of a multiple of 16 bytes: 8 bf16 or 16 fp8.
TEST(GemmChoice, StreamsOnlyFewTokensAndAlignedRows) {
  EXPECT_TRUE(streaming_takes({.m = 64, .n = 31, .k = 8}));
  EXPECT_FALSE(streaming_takes({.m = 65, .n = 31, .k = 8}));
  EXPECT_FALSE(streaming_takes({.m = 64, .n = 31, .k = 12}));
  EXPECT_TRUE(streaming_takes({.dtype = DType::kFp8, .m = 1, .n = 31, .k = 16}));
  EXPECT_FALSE(streaming_takes({.dtype = DType::kFp8, .m = 1, .n = 31, .k = 24}));
}

TEST(GemmChoice, CandidatesAreTilesTheKernelHas) {
  for (const GemmShape& shape : streaming_shapes()) {
    const std::vector<StreamingTile> tiles = streaming_candidates(shape);
    ASSERT_FALSE(tiles.empty());
    for (const StreamingTile& tile : tiles) {
      EXPECT_GE(tile.tokens, shape.m);
      EXPECT_TRUE(tile.tokens == 8 || tile.tokens < 2 * shape.m);  // no wider than needed
      EXPECT_EQ(tile.rows % 8, 0);
      EXPECT_GE(tile.rows, 8);
      EXPECT_LE(tile.rows, kStreamingMaxRows);
      EXPECT_GE(tile.split, 1);
      EXPECT_LE(tile.split, kStreamingMaxSplit);
      EXPECT_GE(tile.stages, 2);
      EXPECT_GE(tile.window, 1);
      EXPECT_LE(tile.window, tile.stages);
      EXPECT_GE(tile.x_stages, 1);
      EXPECT_LE(streaming_layout(tile).shared_bytes, kSharedBytesPerBlock);
    }
  }
}

// Parts of the GPU have odd numbers of SMs: not all clusters of four would run at once if each of
// their blocks took a whole one.
TEST(GemmChoice, BlocksOfWideClustersTakeHalfAnSm) {
  for (const GemmShape& shape : streaming_shapes()) {
    for (const StreamingTile& tile : streaming_candidates(shape)) {
      if (tile.split <= 2) continue;
      EXPECT_LE(2 * (streaming_layout(tile).shared_bytes + 1024), 228 * 1024);
    }
  }
}

TEST(GemmChoice, TheRuleIsTheFirstCandidateOrTheLibrary) {
  for (GemmShape shape : streaming_shapes()) {
    for (const bool overlap : {false, true}) {
      EXPECT_EQ(choose_gemm(shape, overlap).tile, streaming_candidates(shape).front());
      GemmShape many = shape;
      many.m = 4096;
      EXPECT_FALSE(choose_gemm(many, overlap).tile.has_value());
    }
  }
}

// With per-tensor scales cuBLASLt is as fast unless launches overlap; it takes no odd n.
TEST(GemmChoice, PerTensorScalesStreamWhereTheLibraryCannotOrLaunchesOverlap) {
  GemmShape shape{.dtype = DType::kFp8, .m = 8, .n = 4096, .k = 4096};
  shape.scaling = Fp8Scaling::kPerTensor;
  EXPECT_FALSE(choose_gemm(shape, false).tile.has_value());
  EXPECT_TRUE(choose_gemm(shape, true).tile.has_value());
  shape.n = 32003;
  EXPECT_TRUE(choose_gemm(shape, false).tile.has_value());
}

// The rings of x and of w lie one behind the other; the widest read of a stage of w, 64-row blocks
// from its last panel, stays below the barriers, and so do the sums.
TEST(GemmChoice, NothingReachesTheBarriers) {
  for (const int tokens : {8, 16, 32, 64}) {
    for (int rows = 8; rows <= kStreamingMaxRows; rows += 8) {
      for (const int panels : {1, 2}) {
        const StreamingTile tile{
            .tokens = tokens, .rows = rows, .panels = panels, .stages = 3, .x_stages = 2};
        const StreamingLayout layout = streaming_layout(tile);
        EXPECT_EQ(layout.w_at, 2 * layout.x_bytes);
        const int last_panel = layout.w_at + 2 * layout.w_bytes + (panels - 1) * rows * 128;
        const int read_to = last_panel + (rows + 63) / 64 * 64 * 128;
        EXPECT_LE(read_to, layout.barriers_at);
        EXPECT_LE(tokens * layout.sum_stride * 4, layout.barriers_at);
        EXPECT_EQ(layout.shared_bytes, layout.barriers_at + 2 * (3 + 2) * 8 + tokens * 4);
        EXPECT_EQ(layout.x_bytes % 1024, 0);  // the swizzle's alignment
        EXPECT_EQ(layout.w_bytes % 1024, 0);
      }
    }
  }
}

// A warp writes the sums of 4 pairs of tokens x 8 rows at once: 32 banks, each once.
TEST(GemmChoice, SumsAreWrittenWithoutBankConflicts) {
  for (int rows = 8; rows <= kStreamingMaxRows; rows += 8) {
    const int stride = streaming_layout({.rows = rows}).sum_stride;
    std::uint32_t banks = 0;
    for (int lane = 0; lane < 32; ++lane) {
      banks |= 1u << ((lane % 4 * 2 * stride + lane / 4) % 32);
    }
    EXPECT_EQ(banks, 0xFFFFFFFFu) << rows;
  }
}

// n = 8192 over 132 SMs is 62.06 rows each, rounded up to 64: 128 blocks at once. Half as many rows
// would leave too few to a block of n = 4096: two share them.
TEST(GemmChoice, TheRuleFillsTheSmsOnce) {
  for (const auto& [n, rows, split] : {std::array{8192, 64, 1}, std::array{4096, 64, 2},
                                       std::array{28672, 224, 1}, std::array{1024, 64, 8}}) {
    const GemmShape shape{.m = 8, .n = n, .k = 8192};
    const StreamingTile tile = streaming_candidates(shape).front();
    EXPECT_EQ(tile.rows, rows);
    EXPECT_EQ(tile.split, split);
    EXPECT_EQ(row_tiles(shape, tile) * tile.split, 128);
  }
}

TEST(GemmChoice, BlocksAreThoseOfTheRule) {
  EXPECT_EQ(streaming_blocks({.m = 17, .n = 2048, .k = 2816}), 128);
  EXPECT_EQ(streaming_blocks({.m = 8, .n = 64, .k = 2048}), 16);  // 8 rows of w each, k in two
  EXPECT_EQ(streaming_blocks({.m = 65, .n = 2048, .k = 2816}), 0);
}

TEST(GemmChoice, RowwiseFp8IsComputedInWholeRoundsOfTiles) {
  const auto computed = [](std::int64_t m, std::int64_t n) {
    return computed_in_rounds({.dtype = DType::kFp8, .m = m, .n = n, .k = 4096}) *
           static_cast<double>(m * n);
  };
  constexpr double kRound = 132.0 * 128 * 128;
  EXPECT_DOUBLE_EQ(computed(65, 4096), kRound);  // 32 tiles of 132
  EXPECT_DOUBLE_EQ(computed(512, 4096), kRound);
  EXPECT_DOUBLE_EQ(computed(513, 4096), 2 * kRound);  // 160
  EXPECT_DOUBLE_EQ(computed(1024, 4096), 2 * kRound);
  EXPECT_DOUBLE_EQ(computed(1025, 4096), 3 * kRound);
  const GemmShape streamed{.dtype = DType::kFp8, .m = 64, .n = 4096, .k = 4096};
  EXPECT_EQ(computed_in_rounds(streamed), 1);
  EXPECT_EQ(computed_in_rounds({.m = 513, .n = 4096, .k = 4096}), 1);  // bf16
}

TEST(GemmChoice, TextNamesTheKernel) {
  EXPECT_EQ(to_text(GemmChoice{.algorithm = 3}), "cuBLASLt, proposal 3");
  EXPECT_EQ(to_text(GemmChoice{.tile = StreamingTile{.tokens = 8,
                                                     .rows = 64,
                                                     .panels = 2,
                                                     .split = 4,
                                                     .stages = 5,
                                                     .window = 3,
                                                     .x_stages = 2}}),
            "8 tokens x 64 rows, panels 2, stages 5 (3 under way) and 2 of x, split 4");
}

}  // namespace
}  // namespace orrery

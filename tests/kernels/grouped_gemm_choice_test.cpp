#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/experts/grouped_gemm/choice.h"

namespace orrery {
namespace {

constexpr int kSharedBytesPerSm = 228 * 1024;  // of sm_90, 1 KiB of each block's reserved

const GroupedGemmShape kScoutShape{.max_rows = 128, .n = 2048, .k = 5120, .groups = 16};

TEST(GroupedGemmChoice, RefusesWhatNoKernelTakes) {
  EXPECT_NO_THROW(require_grouped_gemm_shape(kScoutShape));
  const auto with = [](auto&& change) {
    GroupedGemmShape shape = kScoutShape;
    change(shape);
    return shape;
  };
  for (const GroupedGemmShape& bad :
       {with([](auto& s) { s.dtype = DType::kFp32; }), with([](auto& s) { s.groups = 0; }),
        with([](auto& s) { s.groups = 513; }), with([](auto& s) { s.k = 0; }),
        with([](auto& s) { s.k = 12; }), with([](auto& s) { s.max_rows = -1; }),
        with([](auto& s) { s.n = -8; }), with([](auto& s) { s.n = std::int64_t{1} << 28; })}) {
    EXPECT_THROW(require_grouped_gemm_shape(bad), std::invalid_argument);
  }
}

// Rows of x and w are a multiple of 16 bytes long: 8 bf16 or fp16, or 16 fp8.
TEST(GroupedGemmChoice, TakesRowsOfSixteenBytes) {
  GroupedGemmShape shape = kScoutShape;
  shape.k = 24;
  EXPECT_NO_THROW(require_grouped_gemm_shape(shape));
  shape.dtype = DType::kFp16;
  EXPECT_NO_THROW(require_grouped_gemm_shape(shape));
  shape.dtype = DType::kFp8;
  EXPECT_THROW(require_grouped_gemm_shape(shape), std::invalid_argument);
}

TEST(GroupedGemmChoice, EmptyCallsAreShapes) {
  EXPECT_NO_THROW(require_grouped_gemm_shape({.max_rows = 0, .n = 8, .k = 16, .groups = 1}));
  EXPECT_NO_THROW(require_grouped_gemm_shape({.max_rows = 4, .n = 0, .k = 16, .groups = 1}));
}

TEST(GroupedGemmChoice, CandidatesFitAnSm) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp8}) {
    for (const std::int64_t groups : {1, 16, 128, 512}) {
      for (const std::int64_t rows : {0, 1, 64, 512, 1024, 100000}) {
        GroupedGemmShape shape = kScoutShape;
        shape.dtype = dtype;
        shape.groups = groups;
        shape.max_rows = rows;
        const auto tiles = streamed_candidates(shape, {.rows = rows, .active = groups});
        ASSERT_FALSE(tiles.empty());
        for (const StreamedTile& tile : tiles) {
          const StreamedLayout layout = streamed_layout(tile, groups);
          EXPECT_LE((layout.shared_bytes + 1024) * tile.blocks_per_sm, kSharedBytesPerSm);
          EXPECT_GE(tile.stages, 2);
          EXPECT_GE(tile.cuts, 1);
        }
      }
    }
  }
}

// As wide, on the same units: the same kernel and tile, streamed, as wide as a group and in tiles.
TEST(GroupedGemmChoice, Fp16TakesTheKernelsOfBf16) {
  GroupedGemmShape fp16_shape = kScoutShape;
  fp16_shape.dtype = DType::kFp16;
  for (const std::int64_t rows : {1, 16, 128, 16 * 54, 16 * 200, 16 * 1024}) {
    const GroupedGemmLoad load{.rows = rows, .active = std::min<std::int64_t>(rows, 16)};
    EXPECT_EQ(choose_grouped_gemm(fp16_shape, load), choose_grouped_gemm(kScoutShape, load))
        << rows;
  }
}

// Stages, outputs, table and barriers lie one behind the other: the swizzle wants stages at 1,024
// bytes, vectors of outputs and entries of the table 16, barriers 8.
TEST(GroupedGemmChoice, PartsOfSharedMemoryAreApartAndAligned) {
  for (const int tokens : {8, 16, 32, 64}) {
    for (const int rows : {64, 128}) {
      for (const int panels : {1, 2, 3}) {
        const StreamedTile tile{.tokens = tokens, .rows = rows, .panels = panels, .stages = 3};
        const StreamedLayout layout = streamed_layout(tile, 17);
        EXPECT_EQ(layout.stage_bytes, panels * 128 * (rows + tokens));
        EXPECT_EQ(layout.stage_bytes % 1024, 0);
        EXPECT_EQ(layout.outputs_at, 3 * layout.stage_bytes);
        EXPECT_EQ(layout.groups_at, layout.outputs_at + rows * tokens * 2);
        EXPECT_EQ(layout.groups_at % 16, 0);
        EXPECT_EQ(layout.barriers_at, layout.groups_at + (17 + 2) * 16);
        EXPECT_EQ(layout.barriers_at % 8, 0);
        EXPECT_EQ(layout.shared_bytes, layout.barriers_at + 3 * 2 * 8);
      }
    }
  }
}

TEST(GroupedGemmChoice, TheRingHasRoomForSkewedGroups) {
  for (const std::int64_t active : {1, 16, 128}) {
    EXPECT_EQ(streamed_candidates(kScoutShape, {.rows = 128, .active = active}).front().tokens, 64);
  }
}

// 2048 rows of w are 16 items of 128: with 16 groups 256, in 2 rounds of 132 (97 % full). Of 8
// groups they are 128, one round: items of 64 rows keep more under way. 20 groups of 5120 rows are
// 800, in 7 rounds 87 % full.
TEST(GroupedGemmChoice, WideItemsAreForRoundsThatTheyFill) {
  const auto rows = [](std::int64_t n, std::int64_t active) {
    GroupedGemmShape shape = kScoutShape;
    shape.n = n;
    return streamed_candidates(shape, {.rows = active, .active = active}).front().rows;
  };
  EXPECT_EQ(rows(2048, 16), 128);
  EXPECT_EQ(rows(2048, 8), 64);
  EXPECT_EQ(rows(5120, 20), 64);
}

// k = 5120 in bf16 are 10 KiB, k = 2048 are 4, k = 768 are 1.5.
TEST(GroupedGemmChoice, PiecesHaveTwoKibibytesOfARow) {
  GroupedGemmShape shape = kScoutShape;
  const GroupedGemmLoad load{.rows = 1, .active = 1};
  for (const auto& [k, cuts] : {std::pair{5120, 5}, {2048, 2}, {768, 1}, {65536, 8}}) {
    shape.k = k;
    EXPECT_EQ(streamed_candidates(shape, load).front().cuts, cuts);
  }
}

TEST(GroupedGemmChoice, ManyRowsPerGroupAreTiled) {
  const auto is_tiled = [](std::int64_t rows) {
    return std::holds_alternative<TiledChoice>(
        choose_grouped_gemm(kScoutShape, {.rows = rows, .active = 16}));
  };
  EXPECT_FALSE(is_tiled(0));
  EXPECT_FALSE(is_tiled(128));
  EXPECT_TRUE(is_tiled(16384));
}

// 1 KiB of k are eight steps.
TEST(GroupedGemmChoice, TilesAreAsWideAsAGroupOfAboutATileIfTheyHaveManySteps) {
  const auto chosen = [](std::int64_t k, std::int64_t rows) {
    GroupedGemmShape shape = kScoutShape;
    shape.k = k;
    return std::get<TiledChoice>(choose_grouped_gemm(shape, {.rows = rows, .active = 16}));
  };
  EXPECT_EQ(chosen(5120, 16 * 128), kSwapAbChoice);
  EXPECT_EQ(chosen(512, 16 * 128), TiledChoice{});
  EXPECT_EQ(chosen(5120, 16 * 1024), TiledChoice{});
}

// What streams weights where it may takes the narrower of both where it must not.
TEST(GroupedGemmChoice, ATileIsThatOfTheRuleAndOfFewRowsToo) {
  for (const std::int64_t rows : {16 * 64, 16 * 128, 16 * 1024}) {
    const GroupedGemmLoad load{.rows = rows, .active = 16};
    EXPECT_EQ(choose_grouped_gemm(kScoutShape, load),
              GroupedGemmChoice(choose_tile(kScoutShape, load)));
  }
  EXPECT_EQ(choose_tile(kScoutShape, {.rows = 16, .active = 16}), kSwapAbChoice);
}

// Half of the groups have more rows than 64, the widest item of the streaming kernel, where 64 is
// the mean.
TEST(GroupedGemmChoice, GroupsOfAboutAsManyRowsAsAnItemAreTiled) {
  const auto is_tiled = [](std::int64_t rows_per_group) {
    return std::holds_alternative<TiledChoice>(
        choose_grouped_gemm(kScoutShape, {.rows = 16 * rows_per_group, .active = 16}));
  };
  EXPECT_FALSE(is_tiled(48));
  EXPECT_TRUE(is_tiled(64));
}

// 4096 x 7168 in bf16 are 59 MB.
TEST(GroupedGemmChoice, GroupsThatTheCacheDoesNotHoldGetTilesAsWideAsTheirRows) {
  const GroupedGemmShape shape{.max_rows = 131072, .n = 4096, .k = 7168, .groups = 256};
  const auto choice = choose_grouped_gemm(shape, {.rows = 131072, .active = 256});
  EXPECT_EQ(std::get<TiledChoice>(choice), kSwapAbChoice);
}

TEST(GroupedGemmChoice, AStageMoreWouldNotFit) {
  for (const int per_sm : {1, 2}) {
    StreamedTile tile =
        with_most_stages({.tokens = 16, .rows = 128, .panels = 2, .blocks_per_sm = per_sm}, 16);
    const int most = kSharedBytesPerSm / per_sm - 1024;
    EXPECT_LE(streamed_layout(tile, 16).shared_bytes, most);
    ++tile.stages;
    EXPECT_GT(streamed_layout(tile, 16).shared_bytes, most);
  }
}

TEST(GroupedGemmChoice, TextNamesTheKernel) {
  EXPECT_EQ(to_text(GroupedGemmChoice(StreamedTile{.stages = 11, .cuts = 40})),
            "streamed, 8 tokens x 64 rows, panels 2, stages 11, 1 per SM, cuts 40");
}

}  // namespace
}  // namespace orrery

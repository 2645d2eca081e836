// The launches of our own kernels as their blocks divide them: counts against the blocks counted
// one by one, and laws of the times that follow.

#include "kernels/attention/attention_decode/launch_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "kernels/attention/mla_decode/launch_work.h"
#include "kernels/attention/mla_decode/split.h"
#include "kernels/experts/grouped_gemm/launch_work.h"
#include "kernels/experts/grouped_gemm/tile_sizes.h"
#include "kernels/launch_gpu.h"

namespace orrery {
namespace {

constexpr std::int32_t kNumSms = launch::kNumSms;
constexpr std::int32_t kElementBytes = 2;

AttentionDecodeShape decode_shape(std::int32_t seqs, std::int32_t context, std::int32_t kv_heads) {
  return {.seqs = seqs,
          .heads = 8 * kv_heads,
          .kv_heads = kv_heads,
          .head_dim = 128,
          .max_context = context};
}

// Block by block, as the kernel goes.
AttentionDecodeBlocks counted(const AttentionDecodeShape& shape, int num_sms) {
  const AttentionDecodeSplit split = attention_decode_split(shape, kElementBytes, num_sms);
  const std::int32_t keys = decode::keys_per_unit(shape.head_dim, kElementBytes);
  const std::int32_t row = decode::units_of(shape.max_context, shape.window, keys).count;
  const std::int32_t rows = shape.seqs * (shape.kv_heads / split.heads_per_block);
  const std::int32_t units = row * rows;
  const std::int32_t used = decode::blocks_used(units, split);
  AttentionDecodeBlocks most{.heads = split.heads_per_block};
  for (std::int32_t block = 0; block < used; ++block) {
    const std::int32_t begin = decode::unit_begin(units, used, block);
    const std::int32_t end = decode::unit_begin(units, used, block + 1);
    most.units = std::max(most.units, end - begin);
    most.rows = std::max(most.rows, (end - 1) / row - begin / row + 1);
    std::int32_t shared = 0;
    for (std::int32_t at = begin / row; at <= (end - 1) / row; ++at) {
      const std::int32_t first = decode::block_of(units, used, at * row);
      const std::int32_t last = decode::block_of(units, used, (at + 1) * row - 1);
      shared += first != last ? 1 : 0;
      most.parts = std::max(most.parts, last - first + 1);
    }
    most.shared_rows = std::max(most.shared_rows, shared);
  }
  return most;
}

TEST(AttentionDecodeLaunch, CountsWhatTheBusiestBlockHas) {
  int equal = 0;
  int all = 0;
  for (const std::int32_t seqs : {1, 2, 3, 5, 8, 17, 33, 64, 100, 132, 256, 500}) {
    for (const std::int32_t context : {1, 16, 100, 128, 257, 512, 1000, 2048, 4111, 16384, 65536}) {
      for (const std::int32_t kv_heads : {1, 2, 4, 8, 32}) {
        const AttentionDecodeShape shape = decode_shape(seqs, context, kv_heads);
        const std::int32_t num_sms = seqs % 2 == 0 ? kNumSms : 108;
        const AttentionDecodeBlocks found = attention_decode_blocks(shape, kElementBytes, num_sms);
        const AttentionDecodeBlocks right = counted(shape, num_sms);
        const std::string where = std::to_string(seqs) + " x " + std::to_string(context) + ", " +
                                  std::to_string(kv_heads) + " kv heads";
        ASSERT_EQ(found.heads, right.heads) << where;
        ASSERT_EQ(found.units, right.units) << where;
        ASSERT_GE(found.rows, right.rows) << where;
        ASSERT_GE(found.shared_rows, right.shared_rows) << where;
        ASSERT_GE(found.parts, right.parts) << where;
        ASSERT_EQ(found.shared_rows == 0, right.shared_rows == 0) << where;
        ++all;
        if (found.rows == right.rows && found.shared_rows == right.shared_rows &&
            found.parts == right.parts) {
          ++equal;
        }
      }
    }
  }
  EXPECT_GE(equal, all * 8 / 10) << "of " << all;
}

TEST(AttentionDecodeLaunch, RowsThatBlocksShareUnevenlyCostMore) {
  const auto beside = [](std::int32_t context, std::int32_t kv_heads = 8) {
    const AttentionDecodeShape shape = decode_shape(1, context, kv_heads);
    return attention_decode_launch(shape, kElementBytes, Flops(1e6), kNumSms).beside.value();
  };
  EXPECT_GT(beside(300), beside(256));           // measured: 12.7 and 8.2 us
  EXPECT_GT(beside(65536, 1), beside(4096, 1));  // more partial results to merge
}

TEST(AttentionDecodeLaunch, OfNothingIsNothing) {
  const AttentionDecodeShape none = decode_shape(0, 128, 8);
  EXPECT_EQ(attention_decode_blocks(none, kElementBytes, kNumSms).units, 0);
  EXPECT_FALSE(attention_decode_launch(none, kElementBytes, Flops(0), kNumSms).beside.has_value());
}

// Pieces as the kernel's units go through them.
MlaDecodeUnits counted(const MlaDecodeShape& shape) {
  const int units = shape.heads > 64 ? kNumSms / 2 : kNumSms;
  const int sequences = static_cast<int>(shape.sequences);
  const int row = mla_tiles(static_cast<int>(shape.context));
  const int longest = row * std::min(mla_sequences_per_unit(sequences, units), sequences);
  const MlaSplit split = mla_split(row * sequences, longest, sequences, units);
  MlaDecodeUnits most;
  std::vector<std::int64_t> parts(static_cast<std::size_t>(sequences));
  const std::vector<std::int32_t> lengths(static_cast<std::size_t>(sequences),
                                          static_cast<std::int32_t>(shape.context));
  for (int unit = 0; unit < units; ++unit) {
    const int first = split.whole ? unit * split.quota * row : unit * split.quota;
    const int tiles =
        std::min(split.whole ? split.quota * row : split.quota, row * sequences - first);
    if (tiles <= 0) break;
    MlaPieces pieces(lengths.data(), sequences, first / row, first % row, tiles);
    MlaPiece piece;
    std::int64_t num_pieces = 0;
    while (pieces.next(piece)) {
      ++num_pieces;
      ++parts[static_cast<std::size_t>(piece.sequence)];
    }
    most.tiles = std::max<std::int64_t>(most.tiles, tiles);
    most.pieces = std::max(most.pieces, num_pieces);
  }
  most.parts = *std::ranges::max_element(parts);
  return most;
}

TEST(MlaDecodeLaunch, CountsWhatTheBusiestUnitHas) {
  int equal = 0;
  int all = 0;
  for (const std::int64_t sequences : {1, 2, 3, 17, 66, 70, 132, 140, 200, 500}) {
    for (const std::int64_t context : {1, 63, 64, 65, 700, 1300, 4096, 32768}) {
      for (const std::int64_t heads : {8, 64, 128}) {
        const MlaDecodeShape shape{.sequences = sequences, .context = context, .heads = heads};
        const MlaDecodeUnits found = mla_decode_units(shape, kNumSms);
        const MlaDecodeUnits right = counted(shape);
        const std::string where = std::to_string(sequences) + " x " + std::to_string(context) +
                                  ", " + std::to_string(heads) + " heads";
        ASSERT_EQ(found.tiles, right.tiles) << where;
        ASSERT_GE(found.pieces, right.pieces) << where;
        ASSERT_GE(found.parts, right.parts) << where;
        ++all;
        if (found.pieces == right.pieces && found.parts == right.parts) ++equal;
      }
    }
  }
  EXPECT_GE(equal, all * 8 / 10) << "of " << all;
}

TEST(MlaDecodeLaunch, OfNothingIsNothing) {
  EXPECT_EQ(mla_decode_units({.sequences = 0, .context = 64, .heads = 16}, kNumSms).tiles, 0);
  EXPECT_FALSE(mla_decode_launch({}, Flops(0), kNumSms).beside.has_value());
}

GroupedGemmShape grouped_shape(std::int64_t rows, std::int64_t active, std::int64_t n,
                               std::int64_t k = 2048, DType dtype = DType::kBf16) {
  return {.dtype = dtype,
          .max_rows = rows,
          .n = n,
          .k = k,
          .groups = std::max<std::int64_t>(active, 1)};
}

TEST(GroupedGemmLaunch, TilesGoInWholeWaves) {
  // One group of 1,280 rows in ten tiles of 128 rows: with 13 columns of tiles 130 of 132 SMs have
  // one; with 14 a second wave begins, of eight tiles in quarters, 480 of 4 * 400.
  const auto busy = [](std::int64_t columns) {
    const GroupedGemmShape shape = grouped_shape(1280, 1, columns * 256, 1024);
    return computed_in_waves(shape, {.rows = 1280, .active = 1}, kNumSms) *
           static_cast<double>(columns);
  };
  EXPECT_NEAR(busy(14) / busy(13), 1 + 0.3, 0.01);
  EXPECT_NEAR(busy(13), 132 * 128 / 1280.0 * (1 + 1.7 / 16), 0.01);
  EXPECT_NEAR(busy(26), 2 * busy(13), 0.01);
}

TEST(GroupedGemmLaunch, ManyFullTilesComputeLittleMoreThanTheyNeed) {
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    const double many = computed_in_waves(grouped_shape(131072, 8, 16384, 8192, dtype),
                                          {.rows = 131072, .active = 8}, kNumSms);
    EXPECT_GT(many, 1);
    EXPECT_LT(many, 1.12);
  }
}

TEST(GroupedGemmLaunch, StreamedWeightsGoInRoundsOfItems) {
  // 16 groups of 2048 x 5120 in items of 64 rows: 512 of them, 3 rounds and 116, which are more
  // than two halves of a round would be; of 33 groups 8 rounds without a rest.
  const auto computed = [](std::int64_t active) {
    const LaunchWork launch = grouped_gemm_launch(grouped_shape(active, active, 2048, 5120),
                                                  {.rows = active, .active = active}, kNumSms);
    return launch.computed;  // over the work of `active` groups
  };
  EXPECT_NEAR(computed(16) * 16 / (computed(33) * 33), 4 / 8.0, 1e-9);
  EXPECT_LT(computed(33), computed(34));
}

// 130 tiles are a wave of all SMs, and two of 108, the second in quarters; of many tiles each SM
// has as many more as there are fewer of them.
TEST(GroupedGemmLaunch, FewerSmsTakeMoreWaves) {
  const auto busy = [](std::int64_t rows, int num_sms) {
    return computed_in_waves(grouped_shape(rows, 1, 13 * 256, 1024), {.rows = rows, .active = 1},
                             num_sms);
  };
  EXPECT_NEAR(busy(1280, 108) / busy(1280, kNumSms), 1.3, 0.01);
  EXPECT_NEAR(busy(128000, 108) / busy(128000, kNumSms), 132 / 108.0, 0.02);
  EXPECT_EQ(busy(128, 108), busy(128, kNumSms));
}

// 260 pieces of work are two rounds of 132 blocks and three of 108.
TEST(AttentionDecodeLaunch, FewerSmsTakeMoreRounds) {
  const AttentionDecodeShape shape = decode_shape(65, 520, 4);
  const auto units = [&](int num_sms) {
    return attention_decode_blocks(shape, kElementBytes, num_sms).units;
  };
  EXPECT_GT(units(108), units(kNumSms) * 6 / 5);
}

// Where few rows are not streamed, each active group has a tile of 16 rows to itself, and an SM
// waits for w as if there were 38 (kSwapAbBf16).
TEST(GroupedGemmLaunch, FewRowsInTilesComputeMoreThanTheyNeed) {
  const GroupedGemmLoad few{.rows = 132, .active = 132};
  const GroupedGemmShape shape = grouped_shape(132, 132, 256);
  EXPECT_NEAR(tiled_launch(shape, few, kNumSms).computed, 38 + 4.3 * 16 / 32, 0.01);
  const GroupedGemmLoad many{.rows = 16384, .active = 16};
  const GroupedGemmShape large = grouped_shape(16384, 16, 2048);
  EXPECT_EQ(tiled_launch(large, many, kNumSms).computed,
            grouped_gemm_launch(large, many, kNumSms).computed);
}

TEST(GroupedGemmLaunch, OfNothingIsNothing) {
  const LaunchWork none = grouped_gemm_launch(grouped_shape(0, 0, 2048), {}, kNumSms);
  EXPECT_EQ(none.computed, 1);
  EXPECT_FALSE(none.beside.has_value());
}

TEST(TileSizes, LastTilesGoInPartsWhereThatEndsEarlier) {
  constexpr tiles::PartCosts kCosts = tiles::kSwapAbParts;
  EXPECT_EQ(tiles::cut_last_tiles(0, 132, kCosts).cost, 0);
  EXPECT_EQ(tiles::cut_last_tiles(20, 132, kCosts).parts, 4);
  EXPECT_EQ(tiles::cut_last_tiles(60, 132, kCosts).parts, 2);
  EXPECT_EQ(tiles::cut_last_tiles(131, 132, kCosts).parts, 1);
  EXPECT_EQ(tiles::cut_last_tiles(20, 132, {.half = 420}).parts, 2);
  for (int tiles = 1; tiles < 132; ++tiles) {
    EXPECT_LE(tiles::cut_last_tiles(tiles, 132, kCosts).cost, 400);
  }
}

TEST(TileSizes, TilesOfAGroupAreAlikeAndHoldItsRows) {
  for (int rows = 1; rows < 1000; ++rows) {
    const int width = tiles::even_tile_rows(rows, 160);
    const int tiles = (rows + width - 1) / width;
    EXPECT_LE(width, 160);
    EXPECT_LE(tiles, (rows + 159) / 160);
  }
  EXPECT_EQ(tiles::even_tile_rows(130, 160), 144);
  EXPECT_EQ(tiles::even_tile_rows(0, 160), 16);
}

}  // namespace
}  // namespace orrery

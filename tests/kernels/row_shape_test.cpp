// The layouts of rows over threads cover each row once and fit the hardware.

#include "kernels/cuda/row_shape.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

constexpr std::int64_t kVector = 8;

TEST(RowShape, CoversTheRowWithWholeWarpsAndLittleWaste) {
  for (const int preferred : {2, 4}) {
    const std::int64_t rows = preferred == 2 ? 1 : 100000;
    for (std::int64_t columns = kVector; columns <= 32768; columns += kVector) {
      const RowShape shape = row_shape(rows, columns, preferred);
      ASSERT_GT(shape.vectors_per_thread, 0) << columns;
      const std::int64_t held = static_cast<std::int64_t>(shape.threads) * shape.vectors_per_thread;
      ASSERT_GE(held * kVector, columns);
      // One warp less would not do.
      ASSERT_LT((held - std::int64_t{32} * shape.vectors_per_thread) * kVector, columns);
      ASSERT_EQ(shape.threads % 32, 0);
      ASSERT_LE(shape.threads, kMostRowThreads);
    }
  }
}

TEST(RowShape, OnlyRowsOfOneWarpShareABlock) {
  for (const std::int64_t columns : {8, 1024, 1032, 4096}) {
    const RowShape shape = row_shape(100000, columns, 4);
    EXPECT_EQ(shape.rows_per_block > 1, shape.threads == 32) << columns;
  }
}

TEST(RowShape, LeavesTheRegisterPathWhereItDoesNotFit) {
  EXPECT_EQ(row_shape(10, 32776, 4).vectors_per_thread, 0);
  EXPECT_EQ(row_shape(10, 4095, 4).vectors_per_thread, 0);
}

TEST(RowShape, KeepsToThePreferenceWhereTheRowIsShortEnough) {
  EXPECT_EQ(row_shape(100000, 16384, 2).vectors_per_thread, 2);
  EXPECT_EQ(row_shape(100000, 16392, 2).vectors_per_thread, 4);
  EXPECT_EQ(row_shape(100000, 16384, 4).vectors_per_thread, 4);
}

TEST(RowShape, GivesFewRowsMoreThreads) {
  EXPECT_GT(row_shape(1, 4096, 4).threads, row_shape(100000, 4096, 4).threads);
}

TEST(MapShape, CoversEachRowOnceWithoutAnEmptyChunk) {
  for (const std::int64_t rows : {1, 7, 100000}) {
    for (const std::int64_t vectors : {1, 5, 255, 257, 1792, 1793, 65537}) {
      for (const int most : {2, 4}) {
        const MapShape shape = map_shape(rows, vectors, most);
        const std::int64_t chunk =
            static_cast<std::int64_t>(shape.threads_x) * shape.vectors_per_thread;
        EXPECT_GE(shape.chunks * chunk, vectors);
        EXPECT_LT((shape.chunks - 1) * chunk, vectors);
        EXPECT_LE(shape.threads_x * shape.rows_per_block, 256);
        EXPECT_GE(shape.blocks(rows) * shape.rows_per_block, rows * shape.chunks);
      }
    }
  }
}

TEST(MapShape, SpreadsLittleWorkOverThreads) {
  EXPECT_EQ(map_shape(1, 1792, 4).vectors_per_thread, 1);
  EXPECT_EQ(map_shape(16384, 1792, 4).vectors_per_thread, 4);
}

TEST(RowStride, KeepsRowsApartAndEachOn16Bytes) {
  for (const std::int64_t columns : {1, 8, 128, 4096}) {
    for (std::int64_t stride = 0; stride < 3 * columns + 16; ++stride) {
      const bool is_contiguous = stride == 0;
      const bool is_apart = stride >= columns;
      const bool is_aligned = stride * 2 % 16 == 0;  // two bytes to an element
      EXPECT_EQ(is_row_stride(stride, columns), is_contiguous || (is_apart && is_aligned))
          << stride;
    }
  }
}

}  // namespace
}  // namespace orrery

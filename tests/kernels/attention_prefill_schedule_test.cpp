#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/attention/attention_prefill/schedule.h"
#include "kernels/work.h"

namespace orrery {
namespace {

const std::vector<PrefillChunk> kSequences{{300, 0}, {1, 1000}, {0, 50}, {128, 77}, {129, 0}};
constexpr std::int32_t kRows = 128;

TEST(PrefillTiles, HoldEveryNewTokenOnce) {
  std::vector<int> seen(300 + 1 + 0 + 128 + 129);
  for (const PrefillTile& tile : prefill_tiles(kSequences, kRows, kNoWindow)) {
    EXPECT_GE(tile.rows, 1);
    EXPECT_LE(tile.rows, kRows);
    for (std::int32_t row = 0; row < tile.rows; ++row) ++seen.at(tile.query_row + row);
  }
  EXPECT_EQ(std::ranges::count(seen, 1), std::ssize(seen));
}

TEST(PrefillTiles, LieAfterTheContextOfTheirSequence) {
  for (const PrefillTile& tile : prefill_tiles(kSequences, kRows, kNoWindow)) {
    std::int64_t first_query = 0;
    std::int64_t first_key = 0;
    for (std::int32_t i = 0; i < tile.sequence; ++i) {
      first_query += kSequences[i].query;
      first_key += kSequences[i].query + kSequences[i].context;
    }
    const PrefillChunk& sequence = kSequences[tile.sequence];
    EXPECT_EQ(tile.position, sequence.context + tile.query_row - first_query);
    EXPECT_EQ(tile.key_row, first_key);
    EXPECT_LE(tile.position + tile.rows, sequence.context + sequence.query);
  }
}

TEST(PrefillTiles, ComeInOrderOfTheKeysTheySee) {
  for (std::int32_t window : {1, 60, 500, kNoWindow}) {
    std::int32_t before = kNoWindow;
    for (const PrefillTile& tile : prefill_tiles(kSequences, kRows, window)) {
      const KeyRange keys = visible_keys(tile, window);
      EXPECT_LE(keys.last - keys.first, before);
      before = keys.last - keys.first;
    }
  }
}

// causal_keys() counts the keys that at least one of `query` tokens after `context` sees.
TEST(PrefillTiles, SeeTheKeysThatTheirTokensSee) {
  for (std::int32_t window : {1, 7, 100, kNoWindow}) {
    for (const PrefillTile& tile : prefill_tiles(kSequences, kRows, window)) {
      const KeyRange keys = visible_keys(tile, window);
      EXPECT_EQ(keys.last, tile.position + tile.rows);
      EXPECT_EQ(keys.last - keys.first, causal_keys(tile.rows, tile.position, window));
    }
  }
}

// Blocks that take the next tile when free end at most one tile's time after the mean, and the last
// tiles of a prompt are its shortest: 16 tiles per head of 1 to 16 units, 32 heads, 132 blocks.
TEST(PrefillTiles, KeepAllBlocksOfALongPromptBusy) {
  const PrefillChunk prompt{.query = 2048};
  std::vector<int> busy(132);
  int total = 0;
  for (const PrefillTile& tile : prefill_tiles(std::span(&prompt, 1), kRows, kNoWindow)) {
    for (int head = 0; head < 32; ++head) {
      const int units = (tile.position + tile.rows) / kRows;
      *std::ranges::min_element(busy) += units;
      total += units;
    }
  }
  EXPECT_EQ(total, 32 * 16 * 17 / 2);
  EXPECT_LE(std::ranges::max(busy), total / 132 + 2);
}

TEST(PrefillTiles, RefuseLengthsThatMakeNoSense) {
  const auto tiles = [](PrefillChunk sequence, std::int32_t window) {
    return prefill_tiles(std::span(&sequence, 1), kRows, window);
  };
  EXPECT_THROW(tiles({-1, 0}, kNoWindow), std::invalid_argument);
  EXPECT_THROW(tiles({1, -1}, kNoWindow), std::invalid_argument);
  EXPECT_THROW(tiles({1, 0}, 0), std::invalid_argument);
  EXPECT_THROW(tiles({2, 2147483646}, kNoWindow), std::invalid_argument);
  EXPECT_TRUE(tiles({0, 5}, kNoWindow).empty());
}

}  // namespace
}  // namespace orrery

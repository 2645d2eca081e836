#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "kernels/attention/mla_decode/split.h"

namespace orrery {
namespace {

int total_tiles(const std::vector<std::int32_t>& lengths) {
  int total = 0;
  for (const std::int32_t length : lengths) total += mla_tiles(length);
  return total;
}

MlaSplit split_of(const std::vector<std::int32_t>& lengths, int units) {
  const int sequences = static_cast<int>(lengths.size());
  const int group = mla_sequences_per_unit(sequences, units);
  int longest = 0;
  for (int first = 0; first < sequences; first += group) {
    int sum = 0;
    for (int s = first; s < std::min(first + group, sequences); ++s) {
      sum += mla_tiles(lengths[static_cast<std::size_t>(s)]);
    }
    longest = std::max(longest, sum);
  }
  return mla_split(total_tiles(lengths), longest, sequences, units);
}

// The pieces of unit `unit`, found by walking over all tiles.
std::vector<MlaPiece> pieces_of(const std::vector<std::int32_t>& lengths, int units, int unit) {
  const int sequences = static_cast<int>(lengths.size());
  const MlaSplit split = split_of(lengths, units);
  int position = 0;
  int sequence = 0;
  int tile = 0;
  const auto is_start = [&] {
    return split.whole ? sequence == unit * split.quota && tile == 0
                       : position == unit * split.quota;
  };
  int tiles = split.quota;
  if (split.whole) {
    tiles = 0;
    for (int s = unit * split.quota; s < std::min((unit + 1) * split.quota, sequences); ++s) {
      tiles += mla_tiles(lengths[static_cast<std::size_t>(s)]);
    }
  }
  while (sequence < sequences && !is_start()) {
    if (tile < mla_tiles(lengths[static_cast<std::size_t>(sequence)])) {
      ++tile;
      ++position;
    }
    if (tile == mla_tiles(lengths[static_cast<std::size_t>(sequence)]) && !is_start()) {
      ++sequence;
      tile = 0;
    }
  }
  tiles = std::min(tiles, total_tiles(lengths) - position);
  MlaPieces walk(lengths.data(), sequences, sequence, tile, tiles);
  std::vector<MlaPiece> pieces;
  for (MlaPiece piece; walk.next(piece);) pieces.push_back(piece);
  return pieces;
}

std::vector<std::int32_t> random_lengths(std::mt19937& random, int most) {
  std::vector<std::int32_t> lengths(1 + random() % 40);
  for (std::int32_t& length : lengths) {
    length = static_cast<std::int32_t>(random() % static_cast<unsigned>(most));
  }
  return lengths;
}

TEST(MlaSplit, EveryTileIsDealtOnceAndInOrder) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto lengths = random_lengths(random, trial % 2 == 0 ? 300 : 20000);
    const int units = 1 + static_cast<int>(random() % 70);
    std::vector<int> next(lengths.size());
    for (int unit = 0; unit < units; ++unit) {
      for (const MlaPiece& piece : pieces_of(lengths, units, unit)) {
        const auto s = static_cast<std::size_t>(piece.sequence);
        EXPECT_EQ(piece.length, lengths[s]);
        EXPECT_EQ(piece.begin, next[s]) << "trial " << trial << " unit " << unit;
        EXPECT_LT(piece.begin, piece.end);
        next[s] = piece.end;
      }
    }
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      EXPECT_EQ(next[s], mla_tiles(lengths[s])) << "trial " << trial << " sequence " << s;
    }
  }
}

// So two slots of a unit's workspace are enough.
TEST(MlaSplit, OnlyTheEndsOfAUnitCutSequences) {
  std::mt19937 random(8);
  for (int trial = 0; trial < 100; ++trial) {
    const auto lengths = random_lengths(random, 5000);
    const int units = 1 + static_cast<int>(random() % 140);
    for (int unit = 0; unit < units; ++unit) {
      const auto pieces = pieces_of(lengths, units, unit);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        EXPECT_TRUE(i == 0 || pieces[i].is_first());
        EXPECT_TRUE(i + 1 == pieces.size() || pieces[i].is_last());
      }
    }
  }
}

TEST(MlaSplit, EqualSequencesStayWholeWhereUnitsSuffice) {
  // 128 sequences of 64 tiles on 132 units: 64 against 8192 / 132 = 62.06 and the merge.
  EXPECT_TRUE(mla_split(128 * 64, 64, 128, 132).whole);
  // On 66 units two each: 128 against 124.1.
  EXPECT_EQ(mla_split(128 * 64, 128, 128, 66).quota, 2);
}

TEST(MlaSplit, OneLongSequenceIsCutOverAllUnits) {
  // 1024 tiles on 132 units: 7.8 each.
  const MlaSplit split = mla_split(1024, 1024, 1, 132);
  EXPECT_FALSE(split.whole);
  EXPECT_EQ(split.quota, 8);
}

TEST(MlaSplit, NoUnitWorksMuchLongerThanEqualParts) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 100; ++trial) {
    const auto lengths = random_lengths(random, 30000);
    const int units = 1 + static_cast<int>(random() % 140);
    const int equal = std::max(kMlaMinTiles, (total_tiles(lengths) + units - 1) / units);
    for (int unit = 0; unit < units; ++unit) {
      int tiles = 0;
      for (const MlaPiece& piece : pieces_of(lengths, units, unit))
        tiles += piece.end - piece.begin;
      EXPECT_LE(tiles, equal + kMlaMergeTiles);
    }
  }
}

}  // namespace
}  // namespace orrery

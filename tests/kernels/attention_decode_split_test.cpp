#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "kernels/attention/attention_decode/split.h"

namespace orrery {
namespace {

using decode::block_of;
using decode::blocks_used;
using decode::slot_of;
using decode::unit_begin;
using decode::Units;
using decode::units_of;

TEST(AttentionDecodeSplit, GivesEachUnitToOneBlockEvenly) {
  for (const int blocks : {1, 2, 7, 132}) {
    for (const int units : {132, 133, 1000, 1 << 24}) {
      EXPECT_EQ(unit_begin(units, blocks, 0), 0);
      EXPECT_EQ(unit_begin(units, blocks, blocks), units);
      for (int block = 0; block < blocks; ++block) {
        const int begin = unit_begin(units, blocks, block);
        const int end = unit_begin(units, blocks, block + 1);
        EXPECT_GE(end - begin, units / blocks);
        EXPECT_LE(end - begin, (units + blocks - 1) / blocks);
        EXPECT_EQ(block_of(units, blocks, begin), block);
        EXPECT_EQ(block_of(units, blocks, end - 1), block);
      }
    }
  }
}

TEST(AttentionDecodeSplit, LeavesNoBlockThatTakesPartBelowItsLeast) {
  for (int min_units = 1; min_units <= 16; ++min_units) {
    const AttentionDecodeSplit split{.blocks = 132, .min_units = min_units};
    for (int units = 1; units < 4000; ++units) {
      const int blocks = blocks_used(units, split);
      ASSERT_LE(blocks, 132);
      ASSERT_GE(units / blocks, std::min(units, min_units));
      // One more block would not have its least, or there is none.
      ASSERT_TRUE(blocks == 132 || units / (blocks + 1) < min_units);
    }
  }
}

TEST(AttentionDecodeSplit, UnitsAreThoseWithAKeyThatTheTokenSees) {
  for (const int keys : {16, 32, 64}) {
    for (const int window : {1, 5, 64, 1 << 30}) {
      for (int context = 0; context < 300; ++context) {
        std::set<int> units;
        for (int key = std::max(0, context - window); key < context; ++key)
          units.insert(key / keys);
        const Units found = units_of(context, window, keys);
        ASSERT_EQ(found.count, static_cast<int>(units.size()));
        if (units.empty()) continue;
        ASSERT_EQ(found.first, *units.begin());
      }
    }
  }
}

TEST(AttentionDecodeSplit, NoTwoPartialResultsShareASlot) {
  // Rows of unequal length over blocks: each (row, block) of a row that several blocks share.
  for (const int blocks : {3, 10, 132}) {
    for (int longest = 1; longest < 60; ++longest) {
      std::vector<int> rows;
      int units = 0;
      for (int i = 0; i < 150; ++i) {
        rows.push_back(1 + i * 37 % longest);
        units += rows.back();
      }
      std::set<int> slots;
      int begin = 0;
      for (const int row : rows) {
        const int first = block_of(units, blocks, begin);
        const int last = block_of(units, blocks, begin + row - 1);
        begin += row;
        if (first == last) continue;
        for (int block = first; block <= last; ++block) {
          const int slot = slot_of(first, block);
          ASSERT_LT(slot, 2 * blocks);
          ASSERT_TRUE(slots.insert(slot).second) << "slot " << slot << " twice";
        }
      }
    }
  }
}

TEST(AttentionDecodeSplit, GroupsDivideTheKvHeads) {
  for (int kv_heads = 1; kv_heads <= 64; ++kv_heads) {
    for (const int context : {1, 1000, 100000}) {
      const auto split = attention_decode_split(
          {.seqs = 16, .heads = 2 * kv_heads, .kv_heads = kv_heads, .max_context = context}, 2,
          132);
      EXPECT_EQ(kv_heads % split.heads_per_block, 0);
      EXPECT_EQ(decode::kWarps % split.heads_per_block, 0);
    }
  }
}

TEST(AttentionDecodeSplit, LeavesRowsWholeWhereThatFillsTheDevice) {
  // 132 SMs; sequences of 8 kv heads in groups of heads_per_block. A device full of
  // whole rows needs no merge of blocks; one sequence alone must be shared.
  const auto split = [](int seqs) {
    return attention_decode_split({.seqs = seqs, .heads = 32, .kv_heads = 8, .max_context = 4096},
                                  2, 132);
  };
  for (const int seqs : {16, 32, 64, 128, 256}) {
    const int rows = seqs * 8 / split(seqs).heads_per_block;
    EXPECT_EQ(rows % split(seqs).blocks, 0) << seqs;
    EXPECT_GT(split(seqs).blocks, 120);
  }
  EXPECT_EQ(split(1).heads_per_block, 1);
  EXPECT_EQ(split(1).blocks % 8, 0);  // as many blocks for each of the 8 rows
  EXPECT_GT(split(1).blocks, 120);
}

TEST(AttentionDecodeSplit, IsEvenWhereBlocksAndRowsBeginTogether) {
  // Units of 16 keys. One sequence of 8 kv heads: 8 rows, blocks of at least 8 units. 512 keys are
  // 256 units for 32 blocks, 4 for each row; 300 keys are 8 rows of 19 units for 19 blocks of 8.
  const auto is_even = [](int seqs, int context) {
    return is_even_split({.seqs = seqs, .heads = 32, .kv_heads = 8, .max_context = context}, 2,
                         132);
  };
  EXPECT_TRUE(is_even(1, 512));
  EXPECT_FALSE(is_even(1, 300));
  EXPECT_FALSE(is_even(1, 513));
  // 128 blocks for 32 rows: 4 for each, whose units 4 must divide.
  EXPECT_TRUE(is_even(4, 700));    // 44 units
  EXPECT_FALSE(is_even(4, 1500));  // 94 units
  // 128 rows, a block each, however long, where each is as long as a block must be.
  for (int context = 113; context < 600; ++context) EXPECT_TRUE(is_even(16, context)) << context;
}

TEST(AttentionDecodeSplit, RefusesShapesThatTheKernelDoesNotTake) {
  const AttentionDecodeShape good{.seqs = 1, .heads = 32, .kv_heads = 8, .max_context = 100};
  EXPECT_NO_THROW(attention_decode_split(good, 2, 132));
  const auto refuses = [](AttentionDecodeShape shape, int element_bytes = 2) {
    EXPECT_THROW(attention_decode_split(shape, element_bytes, 132), std::invalid_argument);
  };
  AttentionDecodeShape bad = good;
  bad.head_dim = 96;
  refuses(bad);
  bad = good;
  bad.heads = 33;  // not a multiple
  refuses(bad);
  bad.heads = 17 * 8;  // 17 heads per kv head
  refuses(bad);
  bad = good;
  bad.window = 0;
  refuses(bad);
  refuses(good, 4);
}

TEST(AttentionDecodeSplit, RefusesQueriesThatOverlapOrAreNotAligned) {
  AttentionDecodeShape shape{.seqs = 2, .heads = 32, .kv_heads = 8, .max_context = 100};
  for (const std::int64_t stride : {0, 32 * 128, 48 * 128}) {  // contiguous; the same; q, k and v
    shape.q_stride = stride;
    EXPECT_NO_THROW(attention_decode_split(shape, 2, 132)) << stride;
  }
  for (const std::int64_t stride : {-8, 31 * 128, 48 * 128 + 4}) {
    shape.q_stride = stride;
    EXPECT_THROW(attention_decode_split(shape, 2, 132), std::invalid_argument) << stride;
  }
}

TEST(AttentionDecodeSplit, DoesNotDependOnWhereQueriesLie) {
  AttentionDecodeShape shape{.seqs = 64, .heads = 32, .kv_heads = 8, .max_context = 4096};
  const AttentionDecodeSplit contiguous = attention_decode_split(shape, 2, 132);
  shape.q_stride = 48 * 128;
  const AttentionDecodeSplit strided = attention_decode_split(shape, 2, 132);
  EXPECT_EQ(strided.blocks, contiguous.blocks);
  EXPECT_EQ(strided.heads_per_block, contiguous.heads_per_block);
  EXPECT_EQ(strided.min_units, contiguous.min_units);
  EXPECT_EQ(strided.starts_early, contiguous.starts_early);
}

}  // namespace
}  // namespace orrery

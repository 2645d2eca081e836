// Which block moves where and when, as PrefixBlocks is told what becomes of units.

#include "kernels/serve/prefix_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

namespace orrery {
namespace {

using Blocks = std::vector<std::int32_t>;

// Units of 2 blocks of 4 tokens.
PrefixBlocks make(std::int64_t num_blocks) { return {num_blocks, 4, 2, 4}; }

Blocks held(const PrefixBlocks& blocks, std::int64_t request) {
  const auto own = blocks.held(request);
  return {own.begin(), own.end()};
}

TEST(FreeBlocks, AUnitGetsNeighboursWhileAFrameIsWhole) {
  FreeBlocks free(7, 3);  // frames 0 1 2 and 3 4 5; 6 is left over
  EXPECT_EQ(free.take(), 6);
  EXPECT_EQ(free.take_frame(), (Blocks{0, 1, 2}));
  EXPECT_EQ(free.take(), 3);
  free.give(1);
  free.give(6);
  EXPECT_EQ(free.size(), 4);
  EXPECT_EQ(free.take_frame(), (Blocks{1, 4, 5}));  // none is whole
  EXPECT_EQ(free.take(), 6);
  EXPECT_THROW(free.take(), std::runtime_error);
  for (const std::int32_t block : {2, 1, 0}) free.give(block);
  EXPECT_EQ(free.take_frame(), (Blocks{0, 1, 2}));
}

TEST(PrefixBlocks, AUnitIsWhereItWasComputed) {
  PrefixBlocks blocks = make(8);
  blocks.publishes(0, 71);
  blocks.cover(0, 9);
  const Blocks first = held(blocks, 0);
  ASSERT_EQ(first.size(), 3U);
  EXPECT_TRUE(blocks.take_moves().is_empty());
  blocks.shares(1, 71, false);
  blocks.cover(1, 12);
  EXPECT_EQ(held(blocks, 1).front(), first[0]);
  EXPECT_EQ(held(blocks, 1)[1], first[1]);
  EXPECT_NE(held(blocks, 1)[2], first[2]);
  blocks.release(0);
  blocks.release(1);
  EXPECT_EQ(blocks.num_free(), 6);  // the unit stays until it is evicted
  blocks.evicts(71);
  EXPECT_EQ(blocks.num_free(), 8);
}

TEST(PrefixBlocks, WhatARequestComputedOfAUnitIsDroppedForTheOneThatIsThere) {
  PrefixBlocks blocks = make(8);
  blocks.publishes(0, 71);
  blocks.take_moves();
  blocks.cover(1, 4);  // its first chunk ended within the unit
  blocks.shares(1, 71, true);
  EXPECT_EQ(held(blocks, 1), held(blocks, 0));
  EXPECT_EQ(blocks.num_free(), 6);
}

// Unit 71 leaves for the host and its blocks are taken in the same step.
TEST(PrefixBlocks, WhatIsEvictedIsWrittenBeforeItsBlocksAreOverwritten) {
  PrefixBlocks blocks = make(2);
  blocks.publishes(0, 71);
  const Blocks of_unit = held(blocks, 0);
  blocks.take_moves();
  blocks.release(0);
  blocks.writes(0, 71);
  blocks.evicts(71);
  blocks.cover(1, 8);
  const KvMoves moves = blocks.take_moves();
  ASSERT_EQ(moves.writes.size(), 1U);
  EXPECT_EQ(moves.writes[0].blocks, of_unit);
  EXPECT_EQ(moves.batch, 1);
  EXPECT_EQ(moves.overwrites, 1);
  EXPECT_EQ(moves.num_slots, 1);
}

TEST(PrefixBlocks, AStepThatTakesOtherBlocksWaitsForNothing) {
  PrefixBlocks blocks = make(4);
  blocks.publishes(0, 71);
  blocks.take_moves();
  blocks.release(0);
  blocks.writes(0, 71);
  blocks.evicts(71);
  blocks.cover(1, 4);  // the other frame has been free for longer
  const KvMoves moves = blocks.take_moves();
  EXPECT_EQ(moves.batch, 1);
  EXPECT_EQ(moves.overwrites, 0);
  blocks.cover(2, 12);
  EXPECT_EQ(blocks.take_moves().overwrites, 1);  // now it does
  blocks.cover(1, 4);
  EXPECT_EQ(blocks.take_moves().overwrites, 0);
}

TEST(PrefixBlocks, WhatIsLoadedComesFromWhereItWasWritten) {
  PrefixBlocks blocks = make(4);
  blocks.publishes(0, 71);
  blocks.publishes(0, 72);
  blocks.take_moves();
  blocks.release(0);
  for (const std::uint64_t unit : {72U, 71U}) {
    blocks.writes(0, unit);
    blocks.evicts(unit);
  }
  const KvMoves out = blocks.take_moves();
  blocks.reads(0, 71);
  blocks.receives(1, 71);
  const KvMoves in = blocks.take_moves();
  ASSERT_EQ(in.loads.size(), 1U);
  EXPECT_EQ(in.loads[0].slot, out.writes[1].slot);
  EXPECT_EQ(in.loads[0].blocks, held(blocks, 1));
  EXPECT_EQ(in.loads_after, 1);
  EXPECT_EQ(in.overwrites, 1);  // both frames were read by the first batch
}

TEST(PrefixBlocks, WhatIsWrittenThroughGoesWhenItIsComputed) {
  PrefixBlocks blocks = make(4);
  blocks.writes(0, 71);
  blocks.publishes(0, 71);
  const KvMoves moves = blocks.take_moves();
  EXPECT_TRUE(moves.writes.empty());
  ASSERT_EQ(moves.computed.size(), 1U);
  EXPECT_EQ(moves.computed[0].blocks, held(blocks, 0));
  EXPECT_EQ(moves.overwrites, 0);
  // A request that computes it once more waits until it has been read.
  blocks.shares(1, 71, true);
  EXPECT_EQ(blocks.take_moves().overwrites, 1);
}

TEST(PrefixBlocks, ASlotThatIsReadIsNotWrittenToInTheSameStep) {
  PrefixBlocks blocks = make(8);
  for (const std::uint64_t unit : {71U, 72U}) blocks.publishes(0, unit);
  blocks.take_moves();
  blocks.release(0);
  blocks.writes(0, 71);
  blocks.evicts(71);
  const std::int64_t slot = blocks.take_moves().writes[0].slot;
  // The tier has room for one: 72 takes the place of 71 while that is read.
  blocks.reads(0, 71);
  blocks.drops(0, 71);
  blocks.writes(0, 72);
  blocks.evicts(72);
  blocks.receives(1, 71);
  const KvMoves moves = blocks.take_moves();
  EXPECT_EQ(moves.loads[0].slot, slot);
  EXPECT_NE(moves.writes[0].slot, slot);
  EXPECT_EQ(moves.num_slots, 2);
  // From the next step on it is as good as any.
  blocks.drops(0, 72);
  blocks.release(1);
  blocks.writes(0, 71);
  blocks.evicts(71);
  EXPECT_EQ(blocks.take_moves().num_slots, 2);
}

TEST(PrefixBlocks, WhatIsDroppedAtOnceIsNotWritten) {
  PrefixBlocks blocks = make(8);
  for (const std::uint64_t unit : {71U, 72U}) blocks.publishes(0, unit);
  blocks.take_moves();
  blocks.release(0);
  blocks.writes(0, 72);
  blocks.evicts(72);
  blocks.drops(0, 72);
  blocks.writes(0, 71);
  blocks.evicts(71);
  const KvMoves moves = blocks.take_moves();
  ASSERT_EQ(moves.writes.size(), 1U);
  EXPECT_EQ(moves.num_slots, 1);
}

TEST(PrefixBlocks, SizesThatMakeNoSenseAreRefused) {
  EXPECT_THROW(PrefixBlocks(0, 4, 2, 1), std::invalid_argument);
  EXPECT_THROW(PrefixBlocks(4, 0, 2, 1), std::invalid_argument);
  EXPECT_THROW(PrefixBlocks(4, 4, 0, 1), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

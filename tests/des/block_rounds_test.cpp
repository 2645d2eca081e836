#include "sim/des/block_rounds.h"

#include <gtest/gtest.h>

#include <cmath>

namespace orrery::des {
namespace {

// Rounds that all blocks take where the part `share` of them finds SMs.
double rounds_on(double share, int rounds) {
  BlockRounds blocks(rounds);
  double time = 0;
  while (!blocks.has_ended()) {
    blocks.fill(share);
    const double part = blocks.next_end();
    time += part;
    blocks.advance(part);
  }
  return time;
}

TEST(BlockRounds, BlocksThatWaitAddARoundOfTheirOwn) {
  for (const double share : {0.5, 112.0 / 132, 131.0 / 132}) {
    for (const int rounds : {1, 2, 4, 13}) {
      const double expected = 1 + std::ceil((rounds - 1) / share - 1e-9) + 1;
      EXPECT_NEAR(rounds_on(share, rounds), expected, 1e-9) << share << " " << rounds;
    }
  }
}

TEST(BlockRounds, OnFewSmsOwnPiecesComeOneAfterTheOther) {
  // A tenth of the blocks at a time: ten rounds of one piece each.
  EXPECT_NEAR(rounds_on(0.1, 1), 10, 1e-9);
}

TEST(BlockRounds, OnAllSmsNothingIsAdded) {
  for (const int rounds : {1, 4}) EXPECT_NEAR(rounds_on(1, rounds), rounds, 1e-9);
}

TEST(BlockRounds, WhatWaitsIsWantedUntilItHasEnded) {
  BlockRounds blocks(1);
  EXPECT_EQ(blocks.wanted(), 1);
  blocks.fill(0.75);
  EXPECT_EQ(blocks.running(), 0.75);
  EXPECT_EQ(blocks.wanted(), 1);
  blocks.advance(1);
  EXPECT_EQ(blocks.running(), 0);
  EXPECT_EQ(blocks.wanted(), 0.25);
  blocks.fill(0.25);
  blocks.advance(1);
  EXPECT_TRUE(blocks.has_ended());
}

}  // namespace
}  // namespace orrery::des

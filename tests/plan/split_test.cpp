#include "sim/plan/split.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace orrery {
namespace {

using Ranges = std::vector<AxisRange>;

Place over(std::int32_t ways, std::int32_t stride = 1) {
  return Place().add({.ways = ways, .stride = stride});
}

// How often each element of the whole is held by places 0, 1, ... of a part.
std::vector<int> held(const SplitPart& part) {
  std::vector<int> times(static_cast<std::size_t>(part.size));
  for (std::int64_t place = 0; place < part.place.num_places(); ++place) {
    std::int64_t end = 0;
    for (const AxisRange& range : ranges_at(part, place)) {
      EXPECT_GE(range.local, end);  // one behind the other
      end = range.local + range.count;
      EXPECT_LE(end, local_size(part));
      for (std::int64_t i = 0; i < range.count; ++i) {
        ++times.at(static_cast<std::size_t>(range.global + i));
      }
    }
  }
  return times;
}

TEST(Split, EvenSharesFollowEachOther) {
  const Split split{.parts = {divided(whole_part(12), over(4))}};
  EXPECT_EQ(local_size(split), 3);
  EXPECT_EQ(ranges_of(split, 2), (Ranges{{.local = 0, .global = 6, .count = 3}}));
}

// ceil(41 / 4) = 11: three times 11, then 8. Of 4 on 3 places, 2, 2 and none.
TEST(Split, WhatDoesNotDivideIsPaddedAtTheEnd) {
  const SplitPart part = divided(whole_part(41), over(4));
  EXPECT_EQ(local_size(part), 11);
  EXPECT_EQ(ranges_at(part, 3), (Ranges{{.local = 0, .global = 33, .count = 8}}));
  EXPECT_EQ(ranges_at(divided(whole_part(4), over(3)), 2), Ranges());
}

TEST(Split, PartsAreDividedEachByItself) {
  const SplitPart half = divided(whole_part(8), over(2));
  const Split gate_up{.parts = {half, half}};
  EXPECT_EQ(whole_size(gate_up), 16);
  EXPECT_EQ(ranges_of(gate_up, 1), (Ranges{{.local = 0, .global = 4, .count = 4},
                                           {.local = 4, .global = 12, .count = 4}}));
}

// Two key heads of 8 on 4 ranks: neighbours have the same one.
TEST(Split, ReplicasAreAStrideOfTheirNumber) {
  const Split keys{.parts = {divided(whole_part(16), over(2, 2))}};
  EXPECT_EQ(ranges_of(keys, 0), ranges_of(keys, 1));
  EXPECT_EQ(ranges_of(keys, 3), (Ranges{{.local = 0, .global = 8, .count = 8}}));
}

// Experts over (t / 1) dp + d of rank 2 d + t: blocks 0, 2, 1, 3 on ranks 0 to 3.
TEST(Split, DigitsStandInAnyOrder) {
  const Place grid = Place().add({.ways = 2, .stride = 1}).add({.ways = 2, .stride = 2});
  const Split experts{.parts = {divided(whole_part(8), grid)}};
  std::vector<std::int64_t> firsts;
  for (int rank = 0; rank < 4; ++rank) firsts.push_back(ranges_of(experts, rank).front().global);
  EXPECT_EQ(firsts, (std::vector<std::int64_t>{0, 4, 2, 6}));
}

TEST(Split, MicroBatchesTakeTurnsInsideARank) {
  const Place place = over(2).add({.ways = 2, .stride = kOfMicroBatch});
  const Split tokens{.parts = {divided(whole_part(16), place)}};
  EXPECT_EQ(ranges_of(tokens, 1, 0).front().global, 8);
  EXPECT_EQ(ranges_of(tokens, 1, 1).front().global, 12);
}

TEST(Split, DividedTwiceIsDividedByBoth) {
  const SplitPart once = divided(whole_part(24), over(2, 4));
  EXPECT_EQ(divided(once, over(4)), divided(whole_part(24), over(2, 4).add({4, 1})));
}

// 10 on 2 places are 5 each; each of them on 2 more 3 and 2.
TEST(Split, DividedTwiceUnevenlyKeepsTheSharesOfTheFirst) {
  const SplitPart twice = divided(divided(whole_part(10), over(2, 2)), over(2));
  EXPECT_EQ(local_size(twice), 3);
  EXPECT_EQ(twice.starts, (std::vector<std::int64_t>{0, 3, 5, 8}));
  EXPECT_EQ(held(twice), std::vector<int>(10, 1));
}

TEST(Split, RoundRobinDealsOutSingleElements) {
  const SplitPart part{.size = 7, .block = 1, .place = over(3)};
  EXPECT_EQ(local_size(part), 3);
  EXPECT_EQ(ranges_at(part, 0), (Ranges{{0, 0, 1}, {1, 3, 1}, {2, 6, 1}}));
  EXPECT_EQ(ranges_at(part, 2), (Ranges{{0, 2, 1}, {1, 5, 1}}));
}

// 2 n blocks: place p has block p and block 2 n - 1 - p, so causal work is even.
TEST(Split, ZigZagPairsTheFirstBlockWithTheLast) {
  const SplitPart part{.size = 80, .block = 10, .place = over(4), .is_zigzag = true};
  for (std::int64_t place = 0; place < 4; ++place) {
    EXPECT_EQ(ranges_at(part, place), (Ranges{{0, 10 * place, 10}, {10, 10 * (7 - place), 10}}));
  }
}

TEST(Split, UnevenSharesSayWhereTheyBegin) {
  const SplitPart part{.size = 500, .block = 300, .place = over(2, 4), .starts = {0, 300}};
  EXPECT_EQ(local_size(part), 300);
  EXPECT_EQ(ranges_at(part, 1), (Ranges{{.local = 0, .global = 300, .count = 200}}));
}

TEST(Split, EveryElementIsHeldOnceHoweverItIsDealtOut) {
  for (std::int64_t size = 0; size < 40; ++size) {
    for (const std::int32_t ways : {1, 2, 3, 5}) {
      EXPECT_EQ(held(divided(whole_part(size), over(ways))),
                std::vector<int>(static_cast<std::size_t>(size), 1));
      for (const std::int64_t block : {1, 4, 7}) {
        for (const bool is_zigzag : {false, true}) {
          const SplitPart part{
              .size = size, .block = block, .place = over(ways), .is_zigzag = is_zigzag};
          ASSERT_EQ(held(part), std::vector<int>(static_cast<std::size_t>(size), 1))
              << size << " in blocks of " << block << " over " << ways;
        }
      }
    }
  }
}

TEST(Split, WhatIsDealtOutInTurnsIsNotDividedAgain) {
  const SplitPart part{.size = 8, .block = 1, .place = over(2)};
  EXPECT_THROW((void)divided(part, over(2)), std::invalid_argument);
}

TEST(Split, ContradictionsAreErrors) {
  EXPECT_THROW(check_split({}), std::invalid_argument);
  EXPECT_THROW(check_split({.parts = {{.size = 4, .block = 0}}}), std::invalid_argument);
  EXPECT_THROW(check_split({.parts = {{.size = -1, .block = 1}}}), std::invalid_argument);
  const SplitPart one_start{.size = 4, .block = 4, .place = over(2), .starts = {0}};
  EXPECT_THROW(check_split({.parts = {one_start}}), std::invalid_argument);
  const SplitPart falling{.size = 4, .block = 4, .place = over(3), .starts = {0, 3, 2}};
  EXPECT_THROW(check_split({.parts = {falling}}), std::invalid_argument);
  EXPECT_THROW((void)over(0), std::invalid_argument);
  EXPECT_THROW((void)over(2, -1), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

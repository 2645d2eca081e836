// What moves between two placements of experts.

#include "sim/parallel/expert_moves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "sim/model/expert_load_sources.h"

namespace orrery {
namespace {

using Ids = std::vector<std::int64_t>;

// Experts of each block, sorted.
std::vector<Ids> blocks_of(const ExpertPlacement& placement) {
  const std::int64_t room = std::ssize(placement.expert_of_slot) / placement.num_blocks;
  std::vector<Ids> blocks;
  for (auto first = placement.expert_of_slot.begin(); first != placement.expert_of_slot.end();
       first += room) {
    blocks.emplace_back(first, first + room);
    std::ranges::sort(blocks.back());
  }
  return blocks;
}

// Block 0 gives 1 for 4, whose slot is the one of 1.
TEST(ExpertMoves, ExpertsThatStayKeepTheirSlots) {
  const ExpertPlacement before{.expert_of_slot = {0, 1, 2, 3, 4, 5}, .num_blocks = 2};
  const ExpertPlacement after{.expert_of_slot = {0, 2, 4, 1, 3, 5}, .num_blocks = 2};
  const ExpertPlacement kept = keeping_slots(before, after);
  EXPECT_EQ(kept.expert_of_slot, (Ids{0, 4, 2, 3, 1, 5}));
  EXPECT_EQ(expert_moves(before, kept, Ids{0, 0}),
            (std::vector<ExpertMove>{{.expert = 4, .from = 1, .to = 0},
                                     {.expert = 1, .from = 0, .to = 1}}));
}

TEST(ExpertMoves, TheSamePlacementMovesNothing) {
  const ExpertPlacement placement{.expert_of_slot = {0, 1, 2, 0}, .num_blocks = 2};
  EXPECT_TRUE(expert_moves(placement, placement, Ids{0, 0}).empty());
  EXPECT_EQ(keeping_slots(placement, placement), placement);
}

// Expert 0 is on blocks 0 (node 0) and 2 (node 1): block 1 gets it from its node, block 3 likewise,
// and block 0 makes a second copy of its own.
TEST(ExpertMoves, CopiesComeFromTheNearestBlock) {
  const ExpertPlacement before{.expert_of_slot = {0, 1, 2, 3, 0, 4, 5, 6}, .num_blocks = 4};
  const ExpertPlacement after{.expert_of_slot = {0, 0, 0, 3, 0, 4, 0, 6}, .num_blocks = 4};
  EXPECT_EQ(expert_moves(before, after, Ids{0, 0, 1, 1}),
            (std::vector<ExpertMove>{{.expert = 0, .from = 0, .to = 0},
                                     {.expert = 0, .from = 0, .to = 1},
                                     {.expert = 0, .from = 2, .to = 3}}));
}

TEST(ExpertMoves, BlocksTakeTurnsAtSending) {
  const ExpertPlacement before{.expert_of_slot = {0, 0, 1, 2}, .num_blocks = 4};
  const ExpertPlacement after{.expert_of_slot = {0, 0, 0, 0}, .num_blocks = 4};
  const auto moves = expert_moves(before, after, Ids{0, 0, 0, 0});
  ASSERT_EQ(moves.size(), 2U);
  EXPECT_NE(moves[0].from, moves[1].from);
}

TEST(ExpertMoves, RebalancingLosesNoExpertAndMovesWhatDiffers) {
  constexpr std::uint64_t kSeed = 20250919;
  for (std::uint64_t draw = 0; draw < 40; ++draw) {
    const std::int64_t blocks = 4;
    const std::int64_t extra = static_cast<std::int64_t>(draw % 3) * blocks;
    const ExpertPlacement before =
        balance_experts(zipf_load(16, 1.0, kSeed + draw).shares, extra, blocks);
    const ExpertPlacement placed =
        balance_experts(zipf_load(16, 1.0, kSeed + draw + 1).shares, extra, blocks);
    const ExpertPlacement after = keeping_slots(before, placed);
    EXPECT_EQ(blocks_of(after), blocks_of(placed)) << "seed " << kSeed + draw;
    std::int64_t num_copies = 0;
    for (std::int64_t expert = 0; expert < 16; ++expert) {
      const auto copies = std::ranges::count(after.expert_of_slot, expert);
      EXPECT_GE(copies, 1) << "seed " << kSeed + draw;
      num_copies += copies;
    }
    EXPECT_EQ(num_copies, 16 + extra);
    std::int64_t num_different = 0;
    for (std::size_t slot = 0; slot < after.expert_of_slot.size(); ++slot) {
      num_different += after.expert_of_slot[slot] != before.expert_of_slot[slot] ? 1 : 0;
    }
    const auto moves = expert_moves(before, after, Ids(blocks, 0));
    EXPECT_EQ(std::ssize(moves), num_different);
    // No other order of the slots of blocks has fewer that differ: what a block has not held.
    const std::vector<Ids> had = blocks_of(before);
    const std::vector<Ids> has = blocks_of(after);
    std::int64_t num_new = 0;
    for (std::size_t block = 0; block < had.size(); ++block) {
      Ids fresh;
      std::ranges::set_difference(has[block], had[block], std::back_inserter(fresh));
      num_new += std::ssize(fresh);
    }
    EXPECT_EQ(num_different, num_new);
  }
}

TEST(ExpertMoves, UnlikePlacementsAreAnError) {
  const ExpertPlacement two{.expert_of_slot = {0, 1, 2, 3}, .num_blocks = 2};
  const ExpertPlacement four{.expert_of_slot = {0, 1, 2, 3}, .num_blocks = 4};
  EXPECT_THROW(keeping_slots(two, four), std::invalid_argument);
  EXPECT_THROW(expert_moves(two, four, Ids{0, 0}), std::invalid_argument);
  EXPECT_THROW(expert_moves(two, two, Ids{0}), std::invalid_argument);
  const ExpertPlacement other{.expert_of_slot = {0, 1, 2, 4}, .num_blocks = 2};
  EXPECT_THROW(expert_moves(two, other, Ids{0, 0}), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

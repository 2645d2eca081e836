// Placement and copies of experts: small cases by hand, laws on random ones.

#include "sim/parallel/expert_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "sim/model/expert_load_sources.h"

namespace orrery {
namespace {

using Ids = std::vector<std::int64_t>;

// 8 and 1 to one block, 5 and 4 to the other: 9 each.
TEST(ExpertPlacement, TheMostChosenGoesToTheBlockWithTheLeast) {
  const std::vector<double> choices{8, 5, 4, 1};
  const ExpertPlacement placed = balance_experts(choices, 0, 2);
  EXPECT_EQ(placed.expert_of_slot, (Ids{0, 3, 1, 2}));
  EXPECT_EQ(block_choices(placed, choices), (std::vector<double>{9, 9}));
  EXPECT_DOUBLE_EQ(imbalance(placed, choices), 1);
  // In order: 13 and 5, mean 9.
  EXPECT_DOUBLE_EQ(imbalance(placement_in_order(4, 0, 2), choices), 13.0 / 9);
}

// 12 as three times 4, then 6 as twice 3: slots 4 4 4 3 3 2 1 0 over 4 blocks of two.
TEST(ExpertPlacement, RedundantSlotsHalveWhatIsChosenMost) {
  const std::vector<double> choices{12, 6, 2, 1, 0};
  const ExpertPlacement placed = balance_experts(choices, 3, 4);
  EXPECT_EQ(std::ranges::count(placed.expert_of_slot, 0), 3);
  EXPECT_EQ(std::ranges::count(placed.expert_of_slot, 1), 2);
  std::vector<double> blocks = block_choices(placed, choices);
  std::ranges::sort(blocks);
  // 4 + 0, 4 + 1, 4 + 2 and 3 + 3.
  EXPECT_EQ(blocks, (std::vector<double>{4, 5, 6, 6}));
}

// first.
// Halves of 5 to a block each, and three of the others.
TEST(ExpertPlacement, CopiesOfAnExpertLieOnDifferentBlocks) {
  const std::vector<double> choices{10, 1, 1, 1, 1, 1, 1};
  const ExpertPlacement placed = balance_experts(choices, 1, 2);
  const auto half = placed.expert_of_slot.begin() + 4;
  EXPECT_EQ(std::count(placed.expert_of_slot.begin(), half, 0), 1);
  EXPECT_EQ(std::count(half, placed.expert_of_slot.end(), 0), 1);
}

// Groups {9 1} {1 1} | {5 4} {2 1}: by nodes 10 + 2 and 9 + 3.
TEST(ExpertPlacement, OnNodesGroupsStayTogether) {
  const std::vector<double> choices{9, 1, 1, 1, 5, 4, 2, 1};
  const ExpertPlacement placed = balance_experts_on_nodes(choices, 0, 4, 2, 4);
  Ids first(placed.expert_of_slot.begin(), placed.expert_of_slot.begin() + 4);
  std::ranges::sort(first);
  EXPECT_EQ(first, (Ids{0, 1, 2, 3}));
  const std::vector<double> blocks = block_choices(placed, choices);
  EXPECT_DOUBLE_EQ(blocks[0] + blocks[1], 12);
  EXPECT_DOUBLE_EQ(blocks[2] + blocks[3], 12);
}

TEST(ExpertPlacement, ConservesChoicesAndIsNeverSlowerThanBefore) {
  constexpr std::uint64_t kSeed = 20250512;
  std::uint64_t seed = kSeed;
  for (const std::int64_t blocks : {2, 4, 8}) {
    for (const std::int64_t per_block : {1, 2, 5}) {
      for (const std::int64_t extra : {0, 1, 2}) {
        for (int draw = 0; draw < 20; ++draw) {
          const std::int64_t experts = blocks * per_block;
          const ExpertLoad load = zipf_load(experts, 0.1 * draw, ++seed);
          const auto placed = balance_experts(load.shares, extra * blocks, blocks);
          const auto parts = block_choices(placed, load.shares);
          EXPECT_NEAR(std::accumulate(parts.begin(), parts.end(), 0.0), 1, 1e-12);
          EXPECT_LE(imbalance(placed, load.shares),
                    imbalance(placement_in_order(experts, 0, blocks), load.shares) + 1e-12)
              << "seed " << seed << " (from " << kSeed << "), " << experts << " experts, "
              << extra * blocks << " redundant, " << blocks << " blocks";
          EXPECT_EQ(std::ssize(placed.expert_of_slot), experts + extra * blocks);
        }
      }
    }
  }
}

// More redundant slots make the most chosen slot no larger.
TEST(ExpertPlacement, MoreRedundantSlotsBalanceAZipfLoadBetter) {
  const ExpertLoad load = zipf_load(256, 1, 1);
  const double none = imbalance(placement_in_order(256, 0, 32), load.shares);
  const double placed = imbalance(balance_experts(load.shares, 0, 32), load.shares);
  const double copied = imbalance(balance_experts(load.shares, 32, 32), load.shares);
  EXPECT_LT(placed, none);
  EXPECT_LT(copied, placed);
  EXPECT_LT(copied, 1.05);
}

// Top-1: expert 0's share 1/2 in two slots of 1/4.
TEST(ExpertPlacement, TheLoadOfSlotsIsWhatTheMeshTakes) {
  const ExpertLoad load{.shares = {0.5, 0.25, 0.25}};
  const ExpertPlacement placed{.expert_of_slot = {0, 1, 0, 2}, .num_blocks = 2};
  for (const double share : placed_load(placed, load, 3, 1).shares) EXPECT_NEAR(share, 0.25, 1e-9);
}

TEST(ExpertPlacement, SaysWhatDoesNotDivide) {
  const std::vector<double> choices{1, 2, 3, 4};
  EXPECT_THROW((void)balance_experts(choices, 1, 2), std::invalid_argument);
  EXPECT_THROW((void)balance_experts(std::vector<double>{0, 0}, 0, 2), std::invalid_argument);
  EXPECT_THROW((void)balance_experts_on_nodes(choices, 1, 5, 2, 2), std::invalid_argument);
  EXPECT_THROW((void)balance_experts_on_nodes(choices, 0, 2, 2, 1), std::invalid_argument);
  EXPECT_THROW((void)block_choices({.expert_of_slot = {0, 1, 2, 4}, .num_blocks = 2}, choices),
               std::invalid_argument);
  EXPECT_THROW((void)block_choices({.expert_of_slot = {0, 1, 2, 2}, .num_blocks = 2}, choices),
               std::invalid_argument);
}

}  // namespace
}  // namespace orrery

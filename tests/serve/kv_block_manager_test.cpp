#include "sim/serve/kv_block_manager.h"

#include <gtest/gtest.h>

#include <array>

namespace orrery {
namespace {

TEST(KvBlockManager, BlocksAreTakenAndGivenBack) {
  KvBlockManager blocks(10, 0);
  blocks.allocate(7);
  EXPECT_EQ(blocks.num_used(), 7);
  EXPECT_EQ(blocks.num_available(), 3);
  blocks.free(7);
  EXPECT_EQ(blocks.num_available(), 10);
}

TEST(KvBlockManager, AReleasedUnitStaysCachedAndCountsAsAvailable) {
  constexpr std::array<std::uint64_t, 2> kHashes = {11, 12};
  KvBlockManager blocks(10, 2);
  blocks.allocate(4);
  EXPECT_TRUE(blocks.publish_unit(11));
  EXPECT_TRUE(blocks.publish_unit(12));
  EXPECT_EQ(blocks.num_used(), 4);  // publishing moves blocks, it takes none
  blocks.release_units(kHashes);
  EXPECT_EQ(blocks.num_used(), 0);
  EXPECT_EQ(blocks.num_available(), 10);
  EXPECT_EQ(blocks.num_cached_units(kHashes), 2);
  EXPECT_EQ(blocks.num_idle_units(kHashes), 2);
}

TEST(KvBlockManager, AUnitSharedByTwoIsHeldOnce) {
  constexpr std::array<std::uint64_t, 1> kHash = {11};
  KvBlockManager blocks(10, 2);
  blocks.allocate(2);
  blocks.publish_unit(11);
  blocks.acquire_units(kHash);
  EXPECT_EQ(blocks.num_used(), 2);
  blocks.release_units(kHash);
  EXPECT_EQ(blocks.num_used(), 2);  // the first holder is still there
  blocks.release_units(kHash);
  EXPECT_EQ(blocks.num_used(), 0);
}

TEST(KvBlockManager, TheLeastRecentlyUsedTailIsEvictedFirst) {
  constexpr std::array<std::uint64_t, 2> kHashes = {11, 12};
  KvBlockManager blocks(4, 2);
  blocks.allocate(4);
  blocks.publish_unit(11);
  blocks.publish_unit(12);
  blocks.release_units(kHashes);
  blocks.allocate(2);  // one unit must go: 12, the end of the prefix, is useless without 11
  EXPECT_EQ(blocks.num_cached_units(kHashes), 1);
  blocks.allocate(2);
  EXPECT_EQ(blocks.num_cached_units(kHashes), 0);
}

TEST(KvBlockManager, ContentThatIsCachedIsNotPublishedAgain) {
  KvBlockManager blocks(10, 2);
  blocks.allocate(4);
  EXPECT_TRUE(blocks.publish_unit(11));
  EXPECT_FALSE(blocks.publish_unit(11));
}

TEST(KvBlockManager, GivenBackBlocksQueueBehindIdleUnits) {
  // 8 blocks; idle in this order: 2 never written, unit 11, 2 private ones given back, unit 12.
  constexpr std::array<std::uint64_t, 1> kFirst = {11};
  constexpr std::array<std::uint64_t, 1> kSecond = {12};
  KvBlockManager blocks(8, 2);
  blocks.allocate(6);
  blocks.publish_unit(11);
  blocks.publish_unit(12);
  blocks.release_units(kFirst);
  blocks.free(2);
  blocks.release_units(kSecond);
  blocks.allocate(2);
  EXPECT_EQ(blocks.num_cached_units(kFirst), 1);
  blocks.allocate(1);  // half of unit 11 is enough to lose it
  EXPECT_EQ(blocks.num_cached_units(kFirst), 0);
  blocks.allocate(3);  // its other half and the private blocks
  EXPECT_EQ(blocks.num_cached_units(kSecond), 1);
  blocks.allocate(1);
  EXPECT_EQ(blocks.num_cached_units(kSecond), 0);
  EXPECT_EQ(blocks.num_available(), 1);
}

}  // namespace
}  // namespace orrery

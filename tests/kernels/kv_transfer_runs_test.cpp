#include <gtest/gtest.h>

#include <stdexcept>

#include "kernels/comm/kv_transfer/runs.h"

namespace orrery {
namespace {

using Blocks = std::vector<std::int32_t>;

TEST(KvTransferRuns, NeighboursOnBothSidesAreOneCopy) {
  EXPECT_EQ(block_runs(Blocks{4, 5, 6}, Blocks{0, 1, 2}),
            (std::vector{BlockRun{.source = 4, .destination = 0, .count = 3}}));
}

TEST(KvTransferRuns, AStepOnEitherSideStartsANewCopy) {
  EXPECT_EQ(block_runs(Blocks{1, 2, 3, 9}, Blocks{5, 6, 8, 9}),
            (std::vector{BlockRun{.source = 1, .destination = 5, .count = 2},
                         BlockRun{.source = 3, .destination = 8, .count = 1},
                         BlockRun{.source = 9, .destination = 9, .count = 1}}));
}

TEST(KvTransferRuns, NoBlocksAreNoCopies) { EXPECT_TRUE(block_runs(Blocks{}, Blocks{}).empty()); }

TEST(KvTransferRuns, RefusesListsOfDifferentLengths) {
  EXPECT_THROW(block_runs(Blocks{1}, Blocks{}), std::invalid_argument);
}

TEST(KvTransferRuns, EnginesServeFewLargeCopiesAndSmsManySmallOnes) {
  constexpr std::int64_t kMiB = 1 << 20;
  EXPECT_TRUE(copy_engine_is_faster(1, 64 * kMiB));
  EXPECT_FALSE(copy_engine_is_faster(64 * kMiB / 4096, 64 * kMiB));
  // More copies of the same bytes never turn to the engines.
  for (std::int64_t bytes = 4096; bytes <= 64 * kMiB; bytes *= 2) {
    for (std::int64_t copies = 1; copies <= 4096; copies *= 2) {
      if (copy_engine_is_faster(2 * copies, bytes)) {
        EXPECT_TRUE(copy_engine_is_faster(copies, bytes)) << copies << " " << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace orrery

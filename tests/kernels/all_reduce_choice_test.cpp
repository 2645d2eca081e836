#include <gtest/gtest.h>

#include <stdexcept>

#include "kernels/comm/all_reduce/choice.h"

namespace orrery {
namespace {

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;

TEST(AllReduceChoice, GoesFromOneShotOverTwoShotToNcclAndNeverBackAsBytesGrow) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    AllReduceAlgorithm last = AllReduceAlgorithm::kOneShot;
    for (std::int64_t bytes = 1; bytes <= 1024 * kMiB; bytes *= 2) {
      const AllReduceAlgorithm now = choose_all_reduce(bytes, ranks);
      EXPECT_GE(static_cast<int>(now), static_cast<int>(last)) << ranks << " " << bytes;
      last = now;
    }
    EXPECT_EQ(choose_all_reduce(1, ranks), AllReduceAlgorithm::kOneShot);
    EXPECT_EQ(last, AllReduceAlgorithm::kNccl);
  }
}

TEST(AllReduceChoice, OneShotEndsSoonerAmongMoreRanks) {
  // It moves (n-1) times the buffer over each link, two-shot at most twice.
  for (std::int64_t bytes = 1; bytes <= 64 * kMiB; bytes *= 2) {
    for (int ranks = 3; ranks <= kMaxRanks; ++ranks) {
      if (choose_all_reduce(bytes, ranks) == AllReduceAlgorithm::kOneShot) {
        EXPECT_EQ(choose_all_reduce(bytes, ranks - 1), AllReduceAlgorithm::kOneShot)
            << ranks << " " << bytes;
      }
    }
  }
}

TEST(AllReduceChoice, RefusesNumbersOfRanksItHasNoKernelFor) {
  EXPECT_THROW(choose_all_reduce(1, 0), std::invalid_argument);
  EXPECT_THROW(choose_all_reduce(1, kMaxRanks + 1), std::invalid_argument);
  EXPECT_THROW(all_reduce_shape(AllReduceAlgorithm::kNccl, 1, 2), std::invalid_argument);
}

TEST(AllReduceChoice, GridsStayWithinWhatIsResidentAndCoverSmallCallsWithOneVectorPerThread) {
  for (const auto algorithm : {AllReduceAlgorithm::kOneShot, AllReduceAlgorithm::kTwoShot}) {
    for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
      for (std::int64_t bytes = 1; bytes <= 64 * kMiB; bytes = bytes * 3 + 1) {
        const AllReduceShape shape = all_reduce_shape(algorithm, bytes, ranks);
        EXPECT_GE(shape.blocks, 1);
        EXPECT_LE(shape.blocks, kMaxAllReduceBlocks);
        EXPECT_LE(shape.threads, kMaxAllReduceThreads);
        EXPECT_EQ(shape.threads % 32, 0);
        // Up to 256 KiB a thread has one 16-byte vector of its share.
        if (bytes <= 256 * kKiB) {
          const std::int64_t vectors = (bytes + 15) / 16;
          const std::int64_t items =
              algorithm == AllReduceAlgorithm::kOneShot ? vectors : (vectors + ranks - 1) / ranks;
          EXPECT_GE(static_cast<std::int64_t>(shape.blocks) * shape.threads, items)
              << ranks << " " << bytes;
        }
      }
    }
  }
}

TEST(AllReduceChoice, ReceiveAreasHoldASlotForEachRank) {
  // One-shot: n buffers of 16-byte vectors. Two-shot: n shares in, n results, each of
  // ceil(vectors / n) vectors: 100 bytes are 7 vectors, 3 a share among 3 ranks.
  EXPECT_EQ(all_reduce_slot_bytes(AllReduceAlgorithm::kOneShot, 100, 3), 3 * 7 * 16);
  EXPECT_EQ(all_reduce_slot_bytes(AllReduceAlgorithm::kTwoShot, 100, 3), 2 * 3 * 3 * 16);
  EXPECT_EQ(all_reduce_slot_bytes(AllReduceAlgorithm::kNccl, 100, 3), 0);
}

}  // namespace
}  // namespace orrery

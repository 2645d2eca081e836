#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "kernels/comm/collectives/reference.h"

namespace orrery {
namespace {

using reference::collective;
using Ranks = std::vector<std::vector<double>>;

// Rank r holds r * 100 + 0, 1, 2, …
Ranks numbered(int ranks, int size) {
  Ranks inputs(ranks, std::vector<double>(size));
  for (int rank = 0; rank < ranks; ++rank) {
    std::iota(inputs[rank].begin(), inputs[rank].end(), rank * 100.0);
  }
  return inputs;
}

TEST(CollectivesReference, AllReduceIsReduceScatterThenAllGather) {
  const Ranks inputs = numbered(4, 12);
  EXPECT_EQ(
      collective(CollectiveKind::kAllReduce, inputs),
      collective(CollectiveKind::kAllGather, collective(CollectiveKind::kReduceScatter, inputs)));
}

TEST(CollectivesReference, AllReduceGivesEveryRankTheSum) {
  // 0 + 100 + 200 + 3 i at element i.
  for (const auto& output : collective(CollectiveKind::kAllReduce, numbered(3, 5))) {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(output[i], 300 + 3 * i);
  }
}

TEST(CollectivesReference, AllToAllTwiceGivesTheInputsBack) {
  const Ranks inputs = numbered(3, 6);
  const Ranks once = collective(CollectiveKind::kAllToAll, inputs);
  EXPECT_NE(once, inputs);
  EXPECT_EQ(collective(CollectiveKind::kAllToAll, once), inputs);
}

TEST(CollectivesReference, SendRecvReachesRankOneAlone) {
  const Ranks inputs = numbered(3, 2);
  EXPECT_EQ(collective(CollectiveKind::kSendRecv, inputs), (Ranks{{}, inputs[0], {}}));
}

TEST(CollectivesReference, BroadcastGivesEveryRankTheFirst) {
  const Ranks inputs = numbered(2, 2);
  EXPECT_EQ(collective(CollectiveKind::kBroadcast, inputs), (Ranks{inputs[0], inputs[0]}));
}

TEST(CollectivesReference, RefusesSizesThatDoNotFit) {
  EXPECT_THROW(collective(CollectiveKind::kReduceScatter, numbered(2, 3)), std::invalid_argument);
  EXPECT_THROW(collective(CollectiveKind::kAllReduce, {{1, 2}, {1}}), std::invalid_argument);
}

}  // namespace
}  // namespace orrery

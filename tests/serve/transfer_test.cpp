#include "sim/serve/transfer.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery {
namespace {

constexpr double kRounding = 1e-12;

// 1 s for 100 bytes, without latency.
TransferLink link() { return {.time = {.rate = BytesPerSecond(100)}}; }

// (request, end) of all transfers in the order in which they end.
std::vector<std::pair<std::int64_t, double>> ends(TransferQueue& queue) {
  std::vector<std::pair<std::int64_t, double>> found;
  std::vector<TransferQueue::Ended> ended;
  while (const std::optional<Seconds> next = queue.next_event()) {
    ended.clear();
    queue.advance(*next, ended);
    for (const TransferQueue::Ended& end : ended) found.emplace_back(end.idx, end.end.value());
  }
  return found;
}

TEST(TransferTime, WithoutPointsIsLatencyAndBytesOverRate) {
  EXPECT_NEAR(
      transfer_time({.latency = Seconds(0.5), .rate = BytesPerSecond(100)}, Bytes(200)).value(),
      2.5, kRounding);
}

TEST(TransferTime, BetweenPointsIsLinearAndBeyondThemGoesOnAtTheLastRate) {
  // 10 us + bytes / (1 MB/ms), which two points give back.
  const TransferTime time{.points = {{Bytes(1e6), Seconds(1.01e-3)},
                                     {Bytes(3e6), Seconds(3.01e-3)},
                                     {Bytes(9e6), Seconds(9.01e-3)}}};
  EXPECT_NEAR(transfer_time(time, Bytes(2e6)).value(), 2.01e-3, kRounding);
  EXPECT_NEAR(transfer_time(time, Bytes(6e6)).value(), 6.01e-3, kRounding);
  EXPECT_NEAR(transfer_time(time, Bytes(12e6)).value(), 12.01e-3, kRounding);
  EXPECT_NEAR(transfer_time(time, Bytes(9e6)).value(), 9.01e-3, kRounding);
  EXPECT_NEAR(transfer_time(time, Bytes(1e3)).value(), 1.01e-3, kRounding);
}

// 2 s until it moves, 1 s for 100 bytes on idle GPUs, 1.5 times that beside steps.
TEST(TransferQueue, ATransferBeginsLaterAndTakesLongerBesideSteps) {
  TransferLink served = link();
  served.time.start = Seconds(2);
  served.time.points = {{Bytes(100), Seconds(1)}, {Bytes(200), Seconds(2)}};
  served.time.beside_steps = 1.5;
  const std::vector<TransferLink> links = {served};
  TransferQueue queue(links, 1);
  queue.submit(Seconds(10), 7, 0, 0, Bytes(100));
  std::vector<TransferQueue::Ended> ended;
  queue.advance(*queue.next_event(), ended);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].start, Seconds(12));
  EXPECT_NEAR(ended[0].end.value(), 13.5, kRounding);
}

TEST(TransferQueue, TransfersOfOnePairFollowEachOther) {
  const std::vector<TransferLink> links = {link()};
  TransferQueue queue(links, 1);
  queue.submit(Seconds(0), 7, 0, 0, Bytes(100));
  queue.submit(Seconds(0.5), 8, 0, 0, Bytes(300));
  std::vector<TransferQueue::Ended> ended;
  queue.advance(*queue.next_event(), ended);
  queue.advance(*queue.next_event(), ended);
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].idx, 7);
  EXPECT_EQ(ended[0].start, Seconds(0));
  EXPECT_EQ(ended[0].end, Seconds(1));
  EXPECT_EQ(ended[1].idx, 8);
  EXPECT_EQ(ended[1].start, Seconds(1));
  EXPECT_NEAR(ended[1].end.value(), 4, kRounding);
}

TEST(TransferQueue, TwoThatLeaveByOnePortTakeTwiceAsLongWhileBothMove) {
  // 1 prefill, 2 decodes. From 0.5 on both move at half speed: the first has 0.5 left and ends at
  // 1.5; the second has 1.5 left then and ends at 3.
  const std::vector<TransferLink> links = {link(), link()};
  TransferQueue queue(links, 2);
  queue.submit(Seconds(0), 0, 0, 0, Bytes(100));
  queue.submit(Seconds(0.5), 1, 0, 1, Bytes(200));
  const auto found = ends(queue);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_NEAR(found[0].second, 1.5, kRounding);
  EXPECT_NEAR(found[1].second, 3, kRounding);
}

TEST(TransferQueue, APortSharedByThreeLeavesTheOthersWhatTheyCanUse) {
  // 2 prefill, 3 decode replicas. Pairs 0-0, 0-1, 0-2 leave by one port: a third each. Pair 1-0
  // enters where 0-0 does and gets the other two thirds: 100 bytes in 1.5 s. Then 0-0 still has but
  // its third. All of the three end at 3 s.
  const std::vector<TransferLink> links(6, link());
  TransferQueue queue(links, 3);
  for (int decode = 0; decode < 3; ++decode) {
    queue.submit(Seconds(0), decode, 0, decode, Bytes(100));
  }
  queue.submit(Seconds(0), 3, 1, 0, Bytes(100));
  const auto found = ends(queue);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].first, 3);
  EXPECT_NEAR(found[0].second, 1.5, kRounding);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_NEAR(found[i].second, 3, kRounding);
}

TEST(TransferQueue, FabricsShareNothing) {
  std::vector<TransferLink> links = {link(), link()};
  links[1].fabric = 1;
  TransferQueue queue(links, 2);
  queue.submit(Seconds(0), 0, 0, 0, Bytes(100));
  queue.submit(Seconds(0), 1, 0, 1, Bytes(100));
  for (const auto& [idx, end] : ends(queue)) EXPECT_NEAR(end, 1, kRounding);
}

}  // namespace
}  // namespace orrery

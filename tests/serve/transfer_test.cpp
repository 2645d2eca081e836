#include "sim/serve/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/serve/random.h"

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
  queue.submit(Seconds(10), 7, 0, 0, Bytes(100), {});
  std::vector<TransferQueue::Ended> ended;
  queue.advance(*queue.next_event(), ended);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].start, Seconds(12));
  EXPECT_NEAR(ended[0].end.value(), 13.5, kRounding);
}

TEST(TransferQueue, TransfersOfOnePairFollowEachOther) {
  const std::vector<TransferLink> links = {link()};
  TransferQueue queue(links, 1);
  queue.submit(Seconds(0), 7, 0, 0, Bytes(100), {});
  queue.submit(Seconds(0.5), 8, 0, 0, Bytes(300), {});
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
  queue.submit(Seconds(0), 0, 0, 0, Bytes(100), {});
  queue.submit(Seconds(0.5), 1, 0, 1, Bytes(200), {});
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
    queue.submit(Seconds(0), decode, 0, decode, Bytes(100), {});
  }
  queue.submit(Seconds(0), 3, 1, 0, Bytes(100), {});
  const auto found = ends(queue);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0].first, 3);
  EXPECT_NEAR(found[0].second, 1.5, kRounding);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_NEAR(found[i].second, 3, kRounding);
}

// 3 prefill replicas into one whose ranks are twice as many: two at once fill its port, three have
// two thirds of it each.
TEST(TransferQueue, TransfersThatTakeHalfOfAPortShareItWhenThreeMove) {
  std::vector<TransferLink> links(3, link());
  for (TransferLink& into : links) into.entering = 0.5;
  for (const auto& [num, end] : {std::pair(1, 1.0), {2, 1.0}, {3, 1.5}}) {
    TransferQueue queue(links, 1);
    for (int prefill = 0; prefill < num; ++prefill) {
      queue.submit(Seconds(0), prefill, prefill, 0, Bytes(100), {});
    }
    const auto found = ends(queue);
    ASSERT_EQ(found.size(), static_cast<std::size_t>(num));
    for (const auto& [idx, time] : found) EXPECT_NEAR(time, end, kRounding) << idx;
  }
}

TEST(TransferQueue, NobodyIsFasterThanAloneHoweverLittleItTakesOfItsPorts) {
  TransferLink narrow = link();
  narrow.leaving = narrow.entering = 0.25;
  const std::vector<TransferLink> links = {narrow};
  TransferQueue queue(links, 1);
  queue.submit(Seconds(0), 0, 0, 0, Bytes(100), {});
  const auto found = ends(queue);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NEAR(found[0].second, 1, kRounding);
}

// 4 prefill and 3 decode ranks, links that take any part of their ports, 5 transfers a pair at
// once: all end, none before it could alone, none before its port has let through what all of them
// take of it, and the last when all of the busiest port's have followed each other or before.
TEST(TransferQueue, PortsLetThroughWhatTheyCanAndNoMore) {
  constexpr int kPrefill = 4;
  constexpr int kDecode = 3;
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<TransferLink> links;
    std::vector<double> left_by(kPrefill);
    std::vector<double> entered_by(kDecode);
    double all = 0;
    for (int pair = 0; pair < kPrefill * kDecode; ++pair) {
      const double part = 0.1 + 0.9 * random.uniform();
      const bool is_sender = random.uniform() < 0.5;
      links.push_back({.time = {.rate = BytesPerSecond(100)},
                       .leaving = is_sender ? 1 : part,
                       .entering = is_sender ? part : 1});
    }
    TransferQueue queue(links, kDecode);
    for (std::int64_t idx = 0; idx < std::ssize(links) * 5; ++idx) {
      const int pair = static_cast<int>(idx) % (kPrefill * kDecode);
      const Bytes bytes(10 + 100 * random.uniform());
      queue.submit(Seconds(0), idx, pair / kDecode, pair % kDecode, bytes, {});
      const TransferLink& link = links[static_cast<std::size_t>(pair)];
      const double alone = bytes.value() / 100;
      left_by[static_cast<std::size_t>(pair / kDecode)] += alone * link.leaving;
      entered_by[static_cast<std::size_t>(pair % kDecode)] += alone * link.entering;
      all += alone;
    }
    const auto found = ends(queue);
    ASSERT_EQ(found.size(), links.size() * 5);
    const double busiest = std::max(std::ranges::max(left_by), std::ranges::max(entered_by));
    EXPECT_GE(found.back().second, busiest - 1e-9);
    EXPECT_LE(found.back().second, all + 1e-9);
  }
}

// 10 layers, the first there at 0.1 s: 100 bytes take 1 s, or end 0.1 s after the last layer.
TEST(TransferQueue, LayersMoveAsTheyComeAndTheLastOneLast) {
  for (const auto& [last, end] : {std::pair(0.5, 1.1), {1.0, 1.1}, {2.0, 2.1}}) {
    const std::vector<TransferLink> links = {link()};
    TransferQueue queue(links, 1);
    queue.submit(Seconds(0), 7, 0, 0, Bytes(100),
                 {.first = Seconds(0.1), .last = Seconds(last), .last_part = 0.1});
    const auto found = ends(queue);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_NEAR(found[0].second, end, kRounding);
  }
}

// Two prompts of one step of 10 s on one pair, 1 s each: both end 0.1 s after the step, though only
// one moves at a time. A third, whose layers are all there at 3 s, moves in between and ends first.
TEST(TransferQueue, WhoWaitsForItsLastLayerLeavesItsPorts) {
  const Transfers::Layers layers{.first = Seconds(1), .last = Seconds(10), .last_part = 0.1};
  const std::vector<TransferLink> links = {link()};
  TransferQueue queue(links, 1);
  queue.submit(Seconds(0), 0, 0, 0, Bytes(100), layers);
  queue.submit(Seconds(0), 1, 0, 0, Bytes(100), layers);
  queue.submit(Seconds(0.5), 2, 0, 0, Bytes(100), {});
  const auto found = ends(queue);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].first, 2);
  EXPECT_NEAR(found[0].second, 4, kRounding);
  EXPECT_NEAR(found[1].second, 10.1, kRounding);
  EXPECT_NEAR(found[2].second, 10.1, kRounding);
}

TEST(TransferQueue, FabricsShareNothing) {
  std::vector<TransferLink> links = {link(), link()};
  links[1].fabric = 1;
  TransferQueue queue(links, 2);
  queue.submit(Seconds(0), 0, 0, 0, Bytes(100), {});
  queue.submit(Seconds(0), 1, 0, 1, Bytes(100), {});
  for (const auto& [idx, end] : ends(queue)) EXPECT_NEAR(end, 1, kRounding);
}

}  // namespace
}  // namespace orrery

#include "kernels/serve/watched_mover.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace orrery {
namespace {

// Fails or hangs where it is asked to.
class FailingMover : public KvMover {
 public:
  Seconds move(int, int, std::span<const std::int32_t>, std::span<const std::int32_t>) override {
    if (fails) throw std::runtime_error("peer access was lost");
    while (hangs.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Seconds(2);
  }
  bool fails = false;
  std::atomic<bool> hangs{false};
};

TEST(WatchedKvMover, NamesTheRankAndTheReplicasOfATransferThatFails) {
  FailingMover mover;
  WatchedKvMover watched(mover, 2, 3, 4, {});
  EXPECT_EQ(watched.move(1, 2, {}, {}), Seconds(2));
  mover.fails = true;
  try {
    watched.move(1, 2, {}, {});
    FAIL();
  } catch (const RankError& error) {
    EXPECT_STREQ(error.what(),
                 "rank 4, op kv_transfer.1_to_2: in phase transfer: peer access was lost");
  }
}

TEST(WatchedKvMover, EndsTheRunWhenATransferDoesNotEnd) {
  FailingMover mover;
  mover.hangs = true;
  std::string words;
  WatchedKvMover watched(mover, 1, 1, 2,
                         {.limit = Seconds(0.05),
                          .last_words = [&](const std::string& status) { words = status; },
                          .end_process = [&] { mover.hangs = false; }});
  watched.move(0, 0, {}, {});  // returns since the process does not end here
  EXPECT_TRUE(
      words.starts_with("failed rank 0 op kv_transfer.0_to_0: its thread has not gone on; "
                        "phase transfer has taken"))
      << words;
}

}  // namespace
}  // namespace orrery

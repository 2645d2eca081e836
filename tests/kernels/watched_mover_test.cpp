#include "kernels/serve/watched_mover.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace orrery {
namespace {

// Fails or hangs where it is asked to.
class FailingMover : public KvMover {
 public:
  Seconds move(const Move& /*move*/) override {
    if (fails) throw std::runtime_error("peer access was lost");
    while (hangs.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Seconds(2);
  }
  bool fails = false;
  std::atomic<bool> hangs{false};
};

TEST(WatchedKvMover, NamesTheRankAndTheReplicasOfATransferThatFails) {
  FailingMover mover;
  const std::vector<int> first_gpus{0, 4};
  WatchedKvMover watched(mover, first_gpus, 3, {});
  EXPECT_EQ(watched.move({.prefill = 1, .decode = 2}), Seconds(2));
  mover.fails = true;
  try {
    watched.move({.prefill = 1, .decode = 2});
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
  const std::vector<int> first_gpus{0};
  WatchedKvMover watched(mover, first_gpus, 1,
                         {.limit = Seconds(0.05),
                          .last_words = [&](const std::string& status) { words = status; },
                          .end_process = [&] { mover.hangs = false; }});
  watched.move({});  // returns since the process does not end here
  EXPECT_TRUE(
      words.starts_with("failed rank 0 op kv_transfer.0_to_0: its thread has not gone on; "
                        "phase transfer has taken"))
      << words;
}

}  // namespace
}  // namespace orrery

// What ranks tell each other about exchanges by copies: which rows land where, and that threads
// meet.

#include "kernels/execute/exchange_board.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace orrery {
namespace {

using Counts = std::vector<std::vector<std::int64_t>>;  // sent[from][to]

void offer_all(ExchangeBoard& board, const Counts& sent) {
  for (std::size_t to = 0; to < sent.size(); ++to) {
    OfferedRows rows;
    for (const auto& of_rank : sent) rows.received.push_back(of_rank[to]);
    board.offer(static_cast<int>(to), rows);
  }
}

// Rank 1 receives 4 rows of rank 0 and has 2 of its own, so rank 2's begin at 6; rank 2 sends rank
// 0 none.
TEST(ExchangeBoard, RowsOfARankLandBehindThoseOfTheRanksBeforeIt) {
  const Counts sent{{1, 4, 3}, {5, 2, 0}, {0, 7, 8}};
  ExchangeBoard board(3);
  offer_all(board, sent);
  EXPECT_EQ(row_copies(board, 0, sent[0]),
            (std::vector<RowCopy>{{1, 1, 0, 4}, {2, 5, 0, 3}, {0, 0, 0, 1}}));
  EXPECT_EQ(row_copies(board, 1, sent[1]), (std::vector<RowCopy>{{0, 0, 1, 5}, {1, 5, 4, 2}}));
  EXPECT_EQ(row_copies(board, 2, sent[2]), (std::vector<RowCopy>{{1, 0, 6, 7}, {2, 7, 3, 8}}));
}

TEST(ExchangeBoard, OfNoRowsThereIsNothingToCopy) {
  const Counts sent{{0, 0}, {0, 0}};
  ExchangeBoard board(2);
  offer_all(board, sent);
  EXPECT_TRUE(row_copies(board, 0, sent[0]).empty());
}

TEST(ExchangeBoard, CountsThatContradictEachOtherAreAnError) {
  ExchangeBoard board(2);
  offer_all(board, {{1, 2}, {3, 4}});
  try {
    static_cast<void>(row_copies(board, 0, std::vector<std::int64_t>{1, 5}));
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("copies 5 rows"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("expects 2"), std::string::npos) << error.what();
  }
}

TEST(ExchangeBoard, RanksMeetWhenAllHaveComeAsFar) {
  ExchangeBoard board(2);
  EXPECT_TRUE(board.is_met(0));
  board.offer(0, {});
  EXPECT_FALSE(board.is_met(0));
  EXPECT_TRUE(board.is_met(1));
  board.offer(1, {});
  board.sent(1);
  EXPECT_TRUE(board.is_met(0));
  EXPECT_FALSE(board.is_met(1));
}

// Each offers the number of its exchange; who has met the others reads theirs of the same one.
TEST(ExchangeBoard, ThreadsReadTheOffersOfTheSameExchange) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kExchanges = 2000;
  ExchangeBoard board(kRanks);
  std::atomic<int> num_wrong{0};
  const auto meet = [&](int place) {
    while (!board.is_met(place)) std::this_thread::yield();
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(kRanks);
    for (int place = 0; place < kRanks; ++place) {
      threads.emplace_back([&, place] {
        for (std::int64_t i = 0; i < kExchanges; ++i) {
          board.offer(place, {.received = {i, place}});
          meet(place);
          for (int peer = 0; peer < kRanks; ++peer) {
            if (board.offered(peer).received != std::vector<std::int64_t>{i, peer}) ++num_wrong;
          }
          board.sent(place);
          meet(place);
        }
      });
    }
  }
  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace orrery

// Exchanges of rows by copies, on a runtime without a GPU that does what streams have in any order
// that events let it (fake_cuda.h).

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/execute/copy_workspace.h"
#include "kernels/execute/rank_team.h"
#include "tests/kernels/fake_cuda.h"

namespace orrery {
namespace {

using testing::enqueue_call;
using testing::set_stream_timing;
using testing::StreamTiming;

constexpr int kRanks = 3;
constexpr std::int64_t kMostRows = 8;  // from one rank to another
constexpr std::int64_t kRoom = kRanks * kMostRows;

using Counts = std::vector<std::vector<std::int64_t>>;  // sent[from][to]

// Of row `row` that `from` sends to `to` in an exchange.
std::int32_t value_of(int exchange, int from, int to, std::int64_t row) {
  return exchange * 100000 + from * 10000 + to * 1000 + static_cast<std::int32_t>(row);
}

// The same memory for each exchange: what a rank reads of one is soon written by the next.
struct RankMemory {
  cuda::Stream stream;
  std::vector<std::int32_t> from = std::vector<std::int32_t>(kRoom, -1);
  std::vector<float> from_scales = std::vector<float>(kRoom, -1);
  std::vector<std::int32_t> to = std::vector<std::int32_t>(kRoom, -1);
  std::vector<float> to_scales = std::vector<float>(kRoom, -1);

  [[nodiscard]] CopiedRows rows() {
    return {.from = reinterpret_cast<const std::byte*>(from.data()),
            .from_scales = from_scales.data(),
            .to = reinterpret_cast<std::byte*>(to.data()),
            .to_scales = to_scales.data(),
            .row_bytes = sizeof(std::int32_t)};
  }
};

class Exchanges {
 public:
  Exchanges() : workspace_(std::vector<int>(kRanks, 0)) {
    for (int r = 0; r < kRanks; ++r) ranks_.push_back(std::make_unique<RankMemory>());
  }

  // Enqueues one: rows are written, exchanged, and looked at.
  void exchange(int number, const Counts& sent) {
    for (int r = 0; r < kRanks; ++r) {
      write(number, r, sent);
      std::vector<std::int64_t> received;
      for (const auto& of_rank : sent) received.push_back(of_rank[static_cast<std::size_t>(r)]);
      workspace_.begin(r, at(r).stream, at(r).rows(), received);
    }
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(workspace_.is_met(r));
      workspace_.send(r, at(r).stream, at(r).rows(), sent[static_cast<std::size_t>(r)]);
    }
    for (int r = 0; r < kRanks; ++r) {
      workspace_.end(r, at(r).stream);
      look(number, r, sent);
    }
  }
  void finish() {
    for (const auto& rank : ranks_) rank->stream.synchronize();
  }
  [[nodiscard]] int num_wrong() const { return num_wrong_; }
  [[nodiscard]] std::int64_t num_looked_at() const { return num_looked_at_; }

 private:
  RankMemory& at(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  void write(int number, int rank, const Counts& sent) {
    enqueue_call(at(rank).stream.get(), [this, number, rank, sent] {
      std::size_t place = 0;
      for (int to = 0; to < kRanks; ++to) {
        for (std::int64_t row = 0; row < count(sent, rank, to); ++row, ++place) {
          at(rank).from[place] = value_of(number, rank, to, row);
          at(rank).from_scales[place] = static_cast<float>(value_of(number, rank, to, row));
        }
      }
    });
  }
  void look(int number, int rank, const Counts& sent) {
    enqueue_call(at(rank).stream.get(), [this, number, rank, sent] {
      std::size_t place = 0;
      for (int from = 0; from < kRanks; ++from) {
        for (std::int64_t row = 0; row < count(sent, from, rank); ++row, ++place) {
          const std::int32_t expected = value_of(number, from, rank, row);
          ++num_looked_at_;
          if (at(rank).to[place] != expected) ++num_wrong_;
          if (at(rank).to_scales[place] != static_cast<float>(expected)) ++num_wrong_;
        }
      }
    });
  }
  static std::int64_t count(const Counts& sent, int from, int to) {
    return sent[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }

  std::vector<std::unique_ptr<RankMemory>> ranks_;
  CopyWorkspace workspace_;
  int num_wrong_ = 0;
  std::int64_t num_looked_at_ = 0;
};

class CopiedExchange : public ::testing::TestWithParam<StreamTiming> {};

// Ranks without rows and pairs without any among them.
TEST_P(CopiedExchange, BringsEachRowWhereItBelongsExchangeAfterExchange) {
  set_stream_timing(GetParam());
  std::mt19937 random(7);
  Exchanges exchanges;
  std::int64_t num_rows = 0;
  for (int number = 0; number < 60; ++number) {
    Counts sent(kRanks, std::vector<std::int64_t>(kRanks));
    for (auto& of_rank : sent) {
      const bool has_none = random() % 4 == 0;
      for (std::int64_t& count : of_rank) {
        count = has_none ? 0 : static_cast<std::int64_t>(random() % (kMostRows + 1));
        num_rows += count;
      }
    }
    exchanges.exchange(number, sent);
  }
  exchanges.finish();
  EXPECT_EQ(exchanges.num_wrong(), 0);
  EXPECT_EQ(exchanges.num_looked_at(), num_rows);
}

// As a launch does it, in the threads of the ranks.
TEST(CopiedExchangeOfATeam, EndsWhenARankFailsThatTheOthersWaitFor) {
  for (const bool has_offered : {false, true}) {
    set_stream_timing(StreamTiming::kLazy);
    ExchangeBoard board(2);
    RankTeam team({0, 1}, {0, 1});
    const auto meet = [&](int place) { team.wait_until([&] { return board.is_met(place); }); };
    bool has_gone_on = false;
    try {
      team.run([&](int rank) {
        if (rank == 0 && !has_offered) throw std::runtime_error("rank 0 fails");
        board.offer(rank, {.received = {0, 0}});
        meet(rank);
        if (rank == 0) throw std::runtime_error("rank 0 fails");
        board.sent(rank);
        meet(rank);
        has_gone_on = true;
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "rank 0 fails");
    }
    EXPECT_FALSE(has_gone_on);
  }
}

INSTANTIATE_TEST_SUITE_P(Timings, CopiedExchange,
                         ::testing::Values(StreamTiming::kEager, StreamTiming::kLazy,
                                           StreamTiming::kRandom));

}  // namespace
}  // namespace orrery

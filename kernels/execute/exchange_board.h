#pragma once

// What ranks of one process tell each other, thread to thread, about exchanges in which each copies
// rows into the memory of the others. No CUDA.
//
//   offer()   its memory may be written from here on      is_met(): and that of all others
//   sent()    all that it copies has been enqueued        is_met(): so has what others copy
//
// A rank's offer stands until it offers anew, which is behind the sent() of all: nobody reads it by
// then.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace orrery {

// Where rows from all ranks land, one behind the other in the order of the ranks.
struct OfferedRows {
  std::byte* rows = nullptr;
  float* scales = nullptr;             // of fp8, one for each row; null: there are none
  std::vector<std::int64_t> received;  // rows, by rank
};

// Of ranks that make the same exchanges in the same order. offer(), sent() and is_met() are called
// in the thread of the rank at `place`, the former two once is_met() was true of the one before.
class ExchangeBoard {
 public:
  explicit ExchangeBoard(int num_ranks);
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  void offer(int place, OfferedRows rows);
  void sent(int place);
  // Whether all ranks have come as far as this one.
  [[nodiscard]] bool is_met(int place) const;
  // Once offers are met, and until the rank that asks calls sent().
  [[nodiscard]] const OfferedRows& offered(int place) const { return at(place).offered; }

 private:
  struct alignas(64) Rank {
    OfferedRows offered;
    std::atomic<std::int64_t> calls{0};  // of offer() and sent(); `offered` is written before
  };
  [[nodiscard]] Rank& at(int place) const { return ranks_[static_cast<std::size_t>(place)]; }

  int num_ranks_;
  std::unique_ptr<Rank[]> ranks_;
};

// Rows that go to the rank at `peer` as one copy.
struct RowCopy {
  int peer = 0;
  std::int64_t from_row = 0;
  std::int64_t to_row = 0;
  std::int64_t count = 0;
  bool operator==(const RowCopy&) const = default;
};

// What the rank at `place` copies, `sent` rows to each rank: to its neighbour first, so that not
// all write to one rank at once, and last to itself; nothing where there are no rows. Once offers
// are met. Throws std::runtime_error where a rank expects other rows by its own counts.
std::vector<RowCopy> row_copies(const ExchangeBoard& board, int place,
                                std::span<const std::int64_t> sent);

}  // namespace orrery

#include "kernels/execute/exchange_board.h"

#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {

ExchangeBoard::ExchangeBoard(int num_ranks)
    : num_ranks_(num_ranks), ranks_(new Rank[static_cast<std::size_t>(num_ranks)]) {}

void ExchangeBoard::offer(int place, OfferedRows rows) {
  Rank& own = at(place);
  own.offered = std::move(rows);
  own.calls.fetch_add(1, std::memory_order_release);
}

void ExchangeBoard::sent(int place) { at(place).calls.fetch_add(1, std::memory_order_release); }

bool ExchangeBoard::is_met(int place) const {
  const std::int64_t own = at(place).calls.load(std::memory_order_relaxed);
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (at(peer).calls.load(std::memory_order_acquire) < own) return false;
  }
  return true;
}

std::vector<RowCopy> row_copies(const ExchangeBoard& board, int place,
                                std::span<const std::int64_t> sent) {
  const int num_ranks = board.num_ranks();
  std::vector<RowCopy> copies;
  for (int i = 1; i <= num_ranks; ++i) {
    const int peer = (place + i) % num_ranks;
    const std::int64_t count = sent[static_cast<std::size_t>(peer)];
    const std::vector<std::int64_t>& received = board.offered(peer).received;
    const std::int64_t expected = received[static_cast<std::size_t>(place)];
    if (count != expected) {
      throw std::runtime_error("the rank at place " + std::to_string(place) + " copies " +
                               std::to_string(count) + " rows by its counts to the one at place " +
                               std::to_string(peer) + ", which expects " +
                               std::to_string(expected) + " by its own");
    }
    if (count == 0) continue;
    copies.push_back(
        {.peer = peer,
         .from_row = std::accumulate(sent.begin(), sent.begin() + peer, std::int64_t{0}),
         .to_row = std::accumulate(received.begin(), received.begin() + place, std::int64_t{0}),
         .count = count});
  }
  return copies;
}

}  // namespace orrery

#include "kernels/execute/side_rows.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

// Whether `rows` are in so many equal shares, the last of which is filled up.
bool are_shares(std::int64_t share, std::int64_t ranks, std::int64_t rows) {
  const std::int64_t spare = share * ranks - rows;
  return spare >= 0 && spare < ranks;
}

// Throws as side_rows().
void check_rows(const Sides& sides, std::int64_t sent, std::int64_t received) {
  const auto senders = std::ssize(sides.senders);
  const auto receivers = std::ssize(sides.receivers);
  if (senders > 1 && receivers > 1) {
    throw std::invalid_argument("from " + std::to_string(senders) + " ranks to " +
                                std::to_string(receivers) +
                                " of another side, expected one rank on either side");
  }
  const bool fits =
      senders == 1 ? are_shares(received, receivers, sent) : are_shares(sent, senders, received);
  if (fits) return;
  throw std::invalid_argument("of " + std::to_string(sent) + " rows on each of " +
                              std::to_string(senders) + " ranks into " + std::to_string(received) +
                              " on each of " + std::to_string(receivers) +
                              ", expected the same rows on both sides");
}

std::int64_t place(std::span<const int> ranks, int rank) {
  return std::ranges::find(ranks, rank) - ranks.begin();
}

}  // namespace

std::vector<PeerRows> side_rows(const Sides& sides, int rank, std::int64_t sent,
                                std::int64_t received) {
  check_rows(sides, sent, received);
  const std::int64_t all =
      std::min(std::ssize(sides.senders) * sent, std::ssize(sides.receivers) * received);
  const bool sends = std::ranges::find(sides.senders, rank) != sides.senders.end();
  const std::span<const int> own = sends ? sides.senders : sides.receivers;
  const std::span<const int> others = sends ? sides.receivers : sides.senders;
  const std::int64_t own_rows = sends ? sent : received;
  const std::int64_t other_rows = sends ? received : sent;
  const std::int64_t first = place(own, rank) * own_rows;
  const std::int64_t last = std::min(first + own_rows, all);
  std::vector<PeerRows> rows;
  for (std::int64_t i = 0; i < std::ssize(others); ++i) {
    const std::int64_t begin = std::max(first, i * other_rows);
    const std::int64_t end = std::min(last, (i + 1) * other_rows);
    if (begin >= end) continue;
    rows.push_back({.peer = others[static_cast<std::size_t>(i)],
                    .first = begin - first,
                    .count = end - begin});
  }
  return rows;
}

std::vector<std::int32_t> sent_before(const Plan& plan, int rank, const std::vector<Task>& tasks) {
  std::vector<std::int32_t> before(tasks.size(), -1);
  std::map<int, std::int32_t> sent;  // by micro-batch, the last
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Op& op = plan.ops()[static_cast<std::size_t>(tasks[i].op)];
    const std::optional<Sides> sides = sides_of(plan, op);
    if (!sides) continue;
    const int micro_batch = micro_batch_of(op);
    if (std::ranges::find(sides->senders, rank) != sides->senders.end()) {
      sent[micro_batch] = static_cast<std::int32_t>(i);
    } else if (const auto last = sent.find(micro_batch); last != sent.end()) {
      before[i] = last->second;
    }
  }
  return before;
}

}  // namespace orrery

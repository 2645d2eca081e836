#include "kernels/execute/side_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

// Throws as side_rows(). Of any number of rows that the shares of both sides can hold: what fills
// up the last share is less than one row of each rank.
void check_rows(const Sides& sides, std::int64_t sent, std::int64_t received) {
  const auto senders = std::ssize(sides.senders);
  const auto receivers = std::ssize(sides.receivers);
  const std::int64_t least = std::max(senders * (sent - 1), receivers * (received - 1)) + 1;
  if (least <= std::min(senders * sent, receivers * received)) return;
  throw std::invalid_argument("of " + std::to_string(sent) + " rows on each of " +
                              std::to_string(senders) + " ranks into " + std::to_string(received) +
                              " on each of " + std::to_string(receivers) +
                              ", expected the same rows on both sides");
}

std::int64_t rows_in(const Plan& plan, TensorId id) {
  const Tensor& tensor = plan.tensors()[static_cast<std::size_t>(id)];
  return num_elements(tensor) / tensor.axes.back().size;
}

std::int64_t tokens_in(const StepPart& part) {
  std::int64_t tokens = 0;
  for (const auto* sequences : {&part.prefill, &part.decodes}) {
    for (const SequenceTokens* sequence : *sequences) tokens += std::ssize(sequence->tokens);
  }
  return tokens;
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

std::int64_t first_on_peer(const Sides& sides, int rank, int peer, std::int64_t sent,
                           std::int64_t received) {
  const std::vector<PeerRows> rows = side_rows(sides, peer, sent, received);
  const auto found = std::ranges::find(rows, rank, &PeerRows::peer);
  if (found != rows.end()) return found->first;
  throw std::invalid_argument("ranks " + std::to_string(rank) + " and " + std::to_string(peer) +
                              " have no rows in common, expected some");
}

void check_parts_apart(const Plan& plan, std::span<const StepPart> parts) {
  const auto num_batches = static_cast<std::size_t>(num_micro_batches(plan));
  for (const Op& op : plan.ops()) {
    const std::optional<Sides> sides = sides_of(plan, op);
    if (!sides || sides->senders.front() != 0) continue;
    const std::int64_t each = rows_in(plan, op.reads.front());
    const std::int64_t all = std::ssize(sides->receivers) * rows_in(plan, op.writes.front());
    const auto batch = static_cast<std::size_t>(micro_batch_of(op));
    for (std::size_t d = 0; d * num_batches + batch < parts.size(); ++d) {
      const std::int64_t own = tokens_in(parts[d * num_batches + batch]);
      if (own == 0 || static_cast<std::int64_t>(d) * each + own <= all) continue;
      throw std::invalid_argument(
          "data-parallel rank " + std::to_string(d) + " has " + std::to_string(own) + " of its " +
          std::to_string(each) + " rows in micro-batch " + std::to_string(batch) +
          ", and FFNs of their own get " + std::to_string(all) +
          " rows of all ranks; expected sequences that divide over ranks and micro-batches");
    }
  }
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

std::vector<std::int32_t> computed_before(const Plan& plan, int rank,
                                          const std::vector<Task>& tasks) {
  std::vector<std::int32_t> before(tasks.size(), -1);
  std::int32_t computed = -1;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Op& op = plan.ops()[static_cast<std::size_t>(tasks[i].op)];
    const std::optional<Sides> sides = one_way(plan, op);
    if (op.stream == 0) {
      computed = static_cast<std::int32_t>(i);
    } else if (sides && std::ranges::find(sides->receivers, rank) != sides->receivers.end()) {
      before[i] = computed;
    }
  }
  return before;
}

}  // namespace orrery

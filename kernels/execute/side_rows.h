#pragma once

// Which rows go from rank to rank in an all_to_all between two sides (sim/plan/sides.h), and what a
// rank that gets rows waits for. No CUDA.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/execute/rank_program.h"
#include "kernels/execute/step_tables.h"
#include "sim/plan/sides.h"

namespace orrery {

// Rows of a rank's own tensor that go to, or come from, one rank of the other side.
struct PeerRows {
  int peer = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const PeerRows&) const = default;
};

// Of `rank`, where ranks of each side hold `sent` and `received` rows each, one behind the other:
//
//   senders    | 0 0 | 1 1 | 2 2 |        sent 2
//   receivers  | 3 3 3 | 4 4 4 |          received 3: rank 1 sends a row to each
//
// Rows that fill up the last share of several ranks are left out, but for those that both sides
// have. Throws std::invalid_argument where the sides do not hold the same rows.
std::vector<PeerRows> side_rows(const Sides& sides, int rank, std::int64_t sent,
                                std::int64_t received);
// Where the rows that `rank` has in common with `peer` begin there. Throws likewise, and where it
// has none.
std::int64_t first_on_peer(const Sides& sides, int rank, int peer, std::int64_t sent,
                           std::int64_t received);

// `parts`: of each micro-batch of each attention rank. Throws std::invalid_argument where one has
// rows that FFNs do not get, as there are more on attention ranks than in the step.
void check_parts_apart(const Plan& plan, std::span<const StepPart> parts);

// For each task the last one before it that the GPU must have behind it, -1: none. What comes from
// the other side answers what was sent there, for the same micro-batch: it need not be waited for,
// on SMs that others use where NCCL moves it, before that has gone.
std::vector<std::int32_t> sent_before(const Plan& plan, int rank, const std::vector<Task>& tasks);
// Likewise, of tasks that receive on a stream of their own: the last task of stream 0 before it. So
// a GPU that ran one thing after another would run them in the order of the plan, in which all that
// is waited for has been sent.
std::vector<std::int32_t> computed_before(const Plan& plan, int rank,
                                          const std::vector<Task>& tasks);

}  // namespace orrery

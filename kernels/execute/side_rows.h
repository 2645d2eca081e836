#pragma once

// Which rows go from rank to rank in an all_to_all between two sides (sim/plan/sides.h), and what a
// rank that gets rows waits for. No CUDA.

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/execute/rank_program.h"
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
//   senders    | 0 0 0 | 1 1 1 |          sent 3
//   receivers  | 2 2 2 2 2 2 |            received 6
//
// Rows that fill up the last share of several ranks are left out. Throws std::invalid_argument
// where the sides do not hold the same rows, or where both are several ranks: which rows are whose
// is then not known.
std::vector<PeerRows> side_rows(const Sides& sides, int rank, std::int64_t sent,
                                std::int64_t received);

// For each task the last one before it that the GPU must have behind it, -1: none. What comes from
// the other side answers what was sent there, for the same micro-batch: it need not be waited for,
// on SMs that others use, before that has gone.
std::vector<std::int32_t> sent_before(const Plan& plan, int rank, const std::vector<Task>& tasks);

}  // namespace orrery

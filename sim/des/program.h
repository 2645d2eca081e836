#pragma once

// The tasks of one op list in unrolled order, with the waits among them that stream order and host
// order do not imply already.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cost/corrections.h"
#include "sim/plan/plan.h"

namespace orrery::des {

struct Task {
  OpId op = 0;
  std::int32_t copy = 0;
  std::int32_t next_on_stream = -1;  // GPU tasks
  std::int32_t first_successor = 0;  // into Program::successors
  std::int32_t num_successors = 0;
  std::int32_t num_waits = 1;  // the host's issue, the stream predecessor, explicit waits
  bool is_host = false;
  Launched launched = Launched::kRows;
};

struct Program {
  std::vector<Task> tasks;
  std::vector<std::int32_t> successors;
};

// Throws std::invalid_argument when an op is after an op of other ranks only: control dependencies
// between ranks need a communication op.
Program make_program(const Plan& plan, std::span<const OpId> ops);

}  // namespace orrery::des

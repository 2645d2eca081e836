#pragma once

// Where rows from another side (sim/plan/sides.h) land on a rank that another one writes to, and
// which flag says that they are there. No CUDA.
//
// A rank writes again what it has written only when the other has used it up, and nobody asks
// whether that is so. It follows from the plan: of a micro-batch rows go there and back in turn, so
// what comes in a layer answers what went before it, and was computed from all of that. Attention
// sends a layer's rows when it has those of the layer before, which the FFN sent behind its own
// work on them; the FFN answers with rows that attention sent behind its own. So rows of a
// micro-batch have one place on each side, whatever the layer, and each transfer of a step has a
// flag of its own, which the receiver clears. Steps do not overlap.

#include <cstdint>
#include <vector>

#include "kernels/execute/rank_program.h"
#include "sim/plan/plan.h"

namespace orrery {

struct SideLayout {
  // By tensor id, bytes from the start of a rank's area: rows that come from another side, and
  // their row scales (fp8). -1: the tensor is none of these, or has no scales.
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> scales;
  std::int64_t bytes = 0;  // of an area; 0: nothing goes between sides
  // By op id: number of the transfer of copy 0 among those of the step.
  std::vector<std::int64_t> first_transfer;
  std::int64_t num_transfers = 0;

  [[nodiscard]] bool lands(TensorId tensor) const {
    return rows[static_cast<std::size_t>(tensor)] >= 0;
  }
  // Of the flag that `sender` of `num_ranks` sets for the task, the same on all its receivers.
  [[nodiscard]] std::int64_t flag(const Task& task, int sender, int num_ranks) const {
    return (first_transfer[static_cast<std::size_t>(task.op)] + task.copy) * num_ranks + sender;
  }
  [[nodiscard]] std::int64_t num_flags(int num_ranks) const { return num_transfers * num_ranks; }
};
// The same on all ranks; offsets are multiples of 256.
SideLayout side_layout(const Plan& plan);

}  // namespace orrery

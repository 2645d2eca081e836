#pragma once

// Where the activations, inputs and outputs of one rank lie in one arena, memory of tensors that
// are no longer used taken again: `execute` allocates it, predictions of memory count it.

#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

struct BufferPlan {
  // By tensor id: byte offset in the arena; -1 for weights (but those gathered from shards),
  // caches, tensors of other ranks and those that no op on this rank uses.
  std::vector<std::int64_t> offsets;
  // By tensor id: offset of the row scales of an fp8 activation (one float per row), else -1.
  std::vector<std::int64_t> scales;
  std::int64_t arena_bytes = 0;
};

// Lifetimes as memory_of has them (sim/plan/plan.h), but that what is read back (logits,
// KernelSpec::keeps_inputs) is kept to the end of the step, also those of micro-batches before the
// last. Offsets are multiples of 256, except that tensors which are one operand together
// (Slot::is_in_parts) follow each other without gap, in the order of the reads. First-fit by
// falling size; the same plan gives the same buffers. Lifetimes follow the order of the ops, so an
// op of another stream waits for what used its memory before it; what ops of streams other than 0
// use is apart from all that is used while they may run. Throws std::invalid_argument for a
// negative rank, or when ops read the same parts in two orders.
BufferPlan plan_buffers(const Plan& plan, int rank);

}  // namespace orrery

#pragma once

// Collectives of data-parallel ranks with even parts of all ranks' rows (even_rows.h): even parts
// to own rows, results of attention back to even parts, sampled rows to the ranks of their
// sequences.

#include <cstdint>
#include <vector>

#include "kernels/execute/collective_binding.h"
#include "kernels/execute/even_rows.h"

namespace orrery {

// On one rank, at addresses that stay for the life of the step.
struct EvenTables {
  StepRows own;           // of each rank
  std::int64_t rows = 0;  // of an even part
  // Device; -1: padding, which gets zeros.
  const std::int32_t* own_sources = nullptr;      // [own tokens], rows of all even parts
  const std::int32_t* even_sources = nullptr;     // [rows], rows of all ranks' own rows
  const std::int32_t* sampled_sources = nullptr;  // [own seqs], rows of all even parts
  // A graph is replayed with other rows than it was captured with: then all ranks gather the rows
  // of all, which are as many in each step, and pick theirs. Else those that move are sent.
  bool is_captured = false;
  std::vector<RowRun> to_even;  // of the step that is staged
  std::vector<RowRun> to_sampled;
};

// Of an op with a move (CollectiveContext::move). Even parts are gathered where the plan has them
// (".all") and the rank's own rows picked. Attention's results may be of several tensors, whose
// rows follow each other. fp8 with its row scales. Throws std::invalid_argument for other tensors.
Launch bind_even_exchange(const CollectiveContext& context);

}  // namespace orrery

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
  bool is_captured = false;                       // and replayed with other runs than these
  std::vector<RowRun> to_even;                    // of the step that is staged
  std::vector<RowRun> to_sampled;
};

// Of an op with a move (CollectiveContext::move).
//   all_gather  of all ranks' rows, ".all" in the plan, of which the rank takes some
//   all_to_all  of the rows that change ranks, by runs that the host knows. Attention's results may
//               be of several tensors, whose rows follow each other
// fp8 with its row scales. Throws std::invalid_argument for other tensors, and for an all_to_all in
// a step that is captured.
Launch bind_even_exchange(const CollectiveContext& context);

}  // namespace orrery

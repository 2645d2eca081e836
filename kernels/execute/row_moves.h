#pragma once

// Which rows of a step an op works on where data-parallel ranks have even parts of the rows of all
// (DpRows), as the plan shows it: a rank's own sequences, or its even part. No CUDA.

#include <cstdint>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

// A collective that brings rows from one to the other.
enum class RowMove : std::uint8_t {
  kNone,
  kToOwn,     // an all_gather of even parts, of which ranks take the rows of their sequences
  kToEven,    // an all_to_all of what attention has written; of decodes alone an all_gather
  kToSampled  // likewise, of the rows whose logits are wanted
};

struct RowMoves {
  std::vector<RowMove> moves;   // by op
  std::vector<bool> is_on_own;  // by op; all where there are no even parts
  bool has_even = false;
};
RowMoves row_moves(const Plan& plan);
// RowMoves::has_even alone.
bool has_even_rows(const Plan& plan);

}  // namespace orrery

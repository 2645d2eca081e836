#pragma once

// Rows of a step that data-parallel ranks have even parts of, in double: all ranks' rows one behind
// the other, those of each rank as its sequences have them, without padding.

#include <vector>

#include "kernels/binding/kernel_call.h"
#include "kernels/execute/row_moves.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

class EvenRows {
 public:
  EvenRows() = default;
  // `own` of each data-parallel rank, of whose even part there are `rows`. Throws
  // std::invalid_argument where these do not hold all tokens.
  EvenRows(std::vector<const PartRows*> own, std::int64_t rows);

  // What a rank has of the step then. It has no sequences.
  [[nodiscard]] PartRows part(int dp_rank) const;

  // By rank, `num_rows` rows of `columns` of what all ranks have of a tensor.
  [[nodiscard]] std::vector<Values> moved(RowMove move, const std::vector<Values>& inputs,
                                          std::int64_t columns, std::int64_t num_rows) const;

 private:
  std::vector<const PartRows*> own_;
  std::int64_t rows_ = 0;
  std::vector<std::vector<std::int64_t>> places_;  // by rank, of its own rows; padding: -1
  std::int64_t num_places_ = 0;
};

}  // namespace orrery::reference

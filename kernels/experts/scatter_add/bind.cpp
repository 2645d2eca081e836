#include <algorithm>

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/scatter_add/scatter_add.h"

namespace orrery {

// reads y [rows, hidden] (or [groups, bound, hidden]), token_rows [tokens, topk] and, each
// optional, counts (with groups), row_weight, base; writes out
Launch bind_scatter_add(const BindContext& context) {
  const Operand rows = operand(context, "y");
  const Operand token_rows = operand(context, "token_rows");
  const Operand out = result(context, "out");
  const std::vector<Axis>& axes = rows.tensor->axes;
  const MatrixSize y = matrix_size(*rows.tensor);
  const MatrixSize choices = matrix_size(*token_rows.tensor);
  TokenRowSums sums{.tokens = choices.rows,
                    .topk = choices.columns,
                    .rows = y.rows,
                    .hidden = dim(context.op.dims, "hidden")};
  if (axes.size() == 3) {
    sums.groups = axes[0].size;
    sums.bound = axes[1].size;
  }
  sums.y = typed<bf16>(rows);
  sums.token_rows = typed<std::int32_t>(token_rows);
  if (has_operand(context, "counts")) {
    const Operand counts = operand(context, "counts");
    sums.num_counts = num_elements(*counts.tensor);
    sums.counts = typed<std::int32_t>(counts);
  }
  if (has_operand(context, "row_weight")) {
    const Operand weights = operand(context, "row_weight");
    sums.rows = std::min(sums.rows, num_elements(*weights.tensor));
    sums.row_weight = typed<float>(weights);
  }
  if (has_operand(context, "base")) sums.base = typed<bf16>(operand(context, "base"));
  require_taken(context, (sums.groups > 0) == (sums.counts != nullptr),
                "counts with y [groups, bound, hidden], and none with y [rows, hidden]");
  return [=](const cuda::Stream& stream) { scatter_add(stream, sums, typed<bf16>(out)); };
}

}  // namespace orrery

#include <algorithm>

#include "kernels/binding/bind_operands.h"
#include "kernels/experts/scatter_add/scatter_add.h"

namespace orrery {

// reads y [rows, hidden] (or [groups, bound, hidden]), token_rows [tokens, topk], then as their
// types tell: counts (i32, with groups), row_weight (f32), base (bf16); writes out
Launch bind_scatter_add(const BindContext& context) {
  require_dtype(context);
  require_taken(context, context.reads.size() >= 2 && context.writes.size() == 1,
                "y, token_rows, counts, row_weight and base, and writes out");
  const std::vector<Axis>& axes = context.reads[0].tensor->axes;
  const MatrixSize y = matrix_size(*context.reads[0].tensor);
  const MatrixSize choices = matrix_size(*context.reads[1].tensor);
  TokenRowSums sums{.tokens = choices.rows,
                    .topk = choices.columns,
                    .rows = y.rows,
                    .hidden = dim(context.op.dims, "hidden")};
  if (axes.size() == 3) {
    sums.groups = axes[0].size;
    sums.bound = axes[1].size;
  }
  sums.y = typed<bf16>(
      require_operand(context, context.reads[0], {.what = "y", .size = {y.rows, sums.hidden}}));
  sums.token_rows = typed<std::int32_t>(require_operand(
      context, context.reads[1], {.what = "token_rows", .dtype = DType::kInt32, .size = choices}));
  const MatrixSize out_size{sums.tokens, sums.hidden};
  for (const Operand& read : context.reads.subspan(2)) {
    const std::int64_t elements = num_elements(*read.tensor);
    if (read.tensor->dtype == DType::kInt32) {
      sums.num_counts = elements;
      sums.counts = typed<std::int32_t>(require_operand(
          context, read, {.what = "counts", .dtype = DType::kInt32, .size = {1, elements}}));
    } else if (read.tensor->dtype == DType::kFp32) {
      sums.rows = std::min(sums.rows, elements);
      sums.row_weight = typed<float>(require_operand(
          context, read, {.what = "row_weight", .dtype = DType::kFp32, .size = {1, elements}}));
    } else {
      sums.base = typed<bf16>(require_operand(context, read, {.what = "base", .size = out_size}));
    }
  }
  require_taken(context, (sums.groups > 0) == (sums.counts != nullptr),
                "counts with y [groups, bound, hidden], and none with y [rows, hidden]");
  const Operand out =
      require_operand(context, context.writes[0], {.what = "out", .size = out_size});
  return [=](const cuda::Stream& stream) { scatter_add(stream, sums, typed<bf16>(out)); };
}

}  // namespace orrery

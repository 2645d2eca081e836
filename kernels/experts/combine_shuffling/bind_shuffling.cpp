#include "kernels/experts/combine_shuffling/bind_shuffling.h"

namespace orrery {

BoundShuffling bind_shuffling(const BindContext& context, bool combines) {
  require_dtype(context);
  require_operands(context, 2, combines ? 3 : 1);
  const DType dtype = context.op.dtype;
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const std::int64_t ranks = dim(context.op.dims, "ranks");
  const std::int64_t groups = dim(context.op.dims, "groups");
  const auto side = [&](const Operand& operand, const char* what) {
    return require_operand(
        context, operand,
        {.what = what, .dtype = dtype, .size = {matrix_size(*operand.tensor).rows, hidden}});
  };
  const Operand from = side(context.reads[0], "the rows read");
  const Operand to = side(context.writes[0], "the rows written");
  const MatrixSize counted = matrix_size(*context.reads[1].tensor);
  const Operand counts = require_operand(
      context, context.reads[1],
      {.what = "recv_counts", .dtype = DType::kInt32, .size = {ranks, counted.columns}});
  const Tensor& rank_major = *(combines ? from : to).tensor;
  const bool is_padded = rank_major.axes.size() == 3;
  require_taken(context, !is_padded || rank_major.axes[0].size == ranks,
                "[ranks, bound, hidden] on the side of the ranks");
  require_taken(context, is_padded || counted.columns == groups,
                "counts of this rank's experts alone where rows lie without gaps");
  // Counts are of experts that begin at a multiple of their number.
  return {.counts = {.counts = typed<std::int32_t>(counts),
                     .ranks = ranks,
                     .experts = counted.columns,
                     .groups = groups,
                     .first = context.first_expert % counted.columns,
                     .bound = is_padded ? rank_major.axes[1].size : 0},
          .rows = {.from = from.data,
                   .to = to.data,
                   .from_scales = dtype == DType::kFp8 ? from.scales : nullptr,
                   .to_scales = dtype == DType::kFp8 ? to.scales : nullptr,
                   .from_rows = matrix_size(*from.tensor).rows,
                   .to_rows = matrix_size(*to.tensor).rows,
                   .row_bytes = static_cast<std::size_t>(static_cast<double>(hidden) *
                                                         bytes_per_element(dtype))}};
}

}  // namespace orrery

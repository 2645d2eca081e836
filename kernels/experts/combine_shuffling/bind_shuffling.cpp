#include "kernels/experts/combine_shuffling/bind_shuffling.h"

namespace orrery {

BoundShuffling bind_shuffling(const BindContext& context, bool combines) {
  const DType dtype = context.op.dtype;
  const std::int64_t hidden = dim(context.op.dims, "hidden");
  const std::int64_t ranks = dim(context.op.dims, "ranks");
  const std::int64_t groups = dim(context.op.dims, "groups");
  const Operand from = operand(context, combines ? "by_rank" : "by_expert");
  const Operand to = result(context, combines ? "by_expert" : "by_rank");
  const Operand counts = operand(context, "recv_counts");
  const MatrixSize counted = matrix_size(*counts.tensor);
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

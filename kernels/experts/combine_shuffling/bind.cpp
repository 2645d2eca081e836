#include "kernels/experts/combine_shuffling/bind_shuffling.h"

namespace orrery {

// reads rows by rank, recv_counts; writes rows by expert, counts [groups], num_rows [1]
Launch bind_combine_shuffling(const BindContext& context) {
  const BoundShuffling bound = bind_shuffling(context, true);
  const auto integers = [&](std::size_t i, const char* what, std::int64_t size) {
    return typed<std::int32_t>(require_operand(
        context, context.writes[i], {.what = what, .dtype = DType::kInt32, .size = {1, size}}));
  };
  std::int32_t* const counts = integers(1, "counts", bound.counts.groups);
  std::int32_t* const num_rows = integers(2, "num_rows", 1);
  return [=](const cuda::Stream& stream) {
    combine_shuffling(stream, bound.counts, bound.rows, counts, num_rows);
  };
}

}  // namespace orrery

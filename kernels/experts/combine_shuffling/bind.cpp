#include "kernels/experts/combine_shuffling/bind_shuffling.h"

namespace orrery {

// reads rows by rank, recv_counts; writes rows by expert, counts [groups], num_rows [1]
Launch bind_combine_shuffling(const BindContext& context) {
  const BoundShuffling bound = bind_shuffling(context, true);
  auto* const counts = typed<std::int32_t>(result(context, "counts"));
  auto* const num_rows = typed<std::int32_t>(result(context, "num_rows"));
  return [=](const cuda::Stream& stream) {
    combine_shuffling(stream, bound.counts, bound.rows, counts, num_rows);
  };
}

}  // namespace orrery

#include "kernels/experts/combine_shuffling/bind_shuffling.h"

namespace orrery {

// reads rows by expert, recv_counts; writes rows by rank
Launch bind_split_shuffling(const BindContext& context) {
  const BoundShuffling bound = bind_shuffling(context, false);
  return [=](const cuda::Stream& stream) { split_shuffling(stream, bound.counts, bound.rows); };
}

}  // namespace orrery

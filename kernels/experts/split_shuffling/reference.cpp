#include "kernels/experts/combine_shuffling/reference.h"

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

Results split_shuffling_reference(const KernelCall& call) {
  const Tensor& by_rank = tensor_written(call, "by_rank");
  const ShuffleSizes sizes = shuffle_sizes(call, by_rank, /*combines=*/false);
  const std::vector<std::int32_t> counts = integers_read(call, "recv_counts");
  return {put_rows(read(call, "by_expert"), shuffled_rows(counts, sizes),
                   static_cast<std::size_t>(size_of(call, "hidden")),
                   zeros_written(call, "by_rank"))};
}

}  // namespace orrery::reference

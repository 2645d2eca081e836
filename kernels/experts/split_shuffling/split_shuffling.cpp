#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A copy, and ranks x groups int32 counts.
Work work(DType dtype, const Dims& dims) {
  const double rows = size(dims, "rows");
  const double hidden = size(dims, "hidden");
  const double counts =
      size(dims, "ranks") * size(dims, "groups") * bytes_per_element(DType::kInt32);
  return {.flops = Flops(0),
          .bytes_read = Bytes(rows * hidden * activation_bytes(dtype) + counts),
          .bytes_written = Bytes(rows * hidden * activation_bytes(dtype))};
}

}  // namespace

KernelSpec split_shuffling_spec() {
  return {
      .name = "split_shuffling",
      .summary =
          "the inverse of combine_shuffling: rows sorted by expert back into the order of "
          "ranks; dtype of the rows",
      .dims = {{.name = "rows", .meaning = "rows of all groups", .may_be_zero = true},
               {.name = "hidden", .meaning = "columns"},
               {.name = "ranks", .meaning = "ranks that send"},
               {.name = "groups", .meaning = "experts on this rank"}},
      .slots = {{.name = "by_expert", .axes = ".., hidden"},
                {.name = "recv_counts",
                 .axes = "ranks, groups..",
                 .type = SlotType::kInt32,
                 .use = Use::kCounts},
                {.name = "by_rank", .axes = ".., hidden | ranks, .., hidden", .is_result = true}},
      .work = work,
      // As combine_shuffling.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.75,
                .floor = us(2),
                .spread = 0.1},
      .routed = RoutedRole::kSplit,
      .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

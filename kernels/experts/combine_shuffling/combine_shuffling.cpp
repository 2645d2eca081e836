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

KernelSpec combine_shuffling_spec() {
  return {
      .name = "combine_shuffling",
      .summary =
          "rows that came rank by rank, each sorted by expert, sorted by expert alone; dtype "
          "of the rows",
      .dims = {{.name = "rows", .meaning = "rows of all groups", .may_be_zero = true},
               {.name = "hidden", .meaning = "columns"},
               {.name = "ranks", .meaning = "ranks that send"},
               {.name = "groups", .meaning = "experts on this rank"}},
      .slots = {{.name = "by_rank", .axes = ".., hidden | ranks, .., hidden"},
                {.name = "recv_counts",
                 .axes = "ranks, groups..",
                 .type = SlotType::kInt32,
                 .use = Use::kCounts},
                {.name = "by_expert", .axes = ".., hidden", .is_result = true},
                {.name = "counts", .axes = "groups", .type = SlotType::kInt32, .is_result = true},
                {.name = "num_rows", .axes = "1", .type = SlotType::kInt32, .is_result = true}},
      .work = work,
      // 3.6 of 4.8 TB/s at 16,384 rows on an H200; the floor is the time of one row.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.75,
                .floor = us(2),
                .spread = 0.1},
      .routed = RoutedRole::kCombine,
      .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

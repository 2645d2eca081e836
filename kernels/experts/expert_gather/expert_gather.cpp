#include <algorithm>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// As gather_mul, of one expert's rows.
Work work(DType dtype, const Dims& dims) {
  const double rows = size(dims, "rows");
  const double hidden = size(dims, "hidden");
  const double per_row = bytes_per_element(DType::kInt32) + bytes_per_element(DType::kFp32);
  return {.flops = Flops(rows * hidden),
          .bytes_read = Bytes(rows * (hidden * bytes_per_element(DType::kBf16) + per_row)),
          .bytes_written = Bytes(rows * hidden * activation_bytes(dtype))};
}

// One for each row.
double blocks(DType /*dtype*/, const Dims& dims) { return std::max(1.0, size(dims, "rows")); }

// Of a batch that has these rows alone.
KernelOp same_work(const KernelOp& op) {
  const std::int64_t rows = dim(op.dims, "rows");
  return {
      .kernel = "gather_mul",
      .dtype = op.dtype,
      .dims = {{"tokens", rows, ""}, {"rows", rows, ""}, {"hidden", dim(op.dims, "hidden"), ""}}};
}

}  // namespace

KernelSpec expert_gather_spec() {
  return {.name = "expert_gather",
          .summary =
              "the slice of x for one expert, launched with the count that the host has read; "
              "dtype is the format of the rows",
          .dims = {{.name = "rows",
                    .meaning = "rows of the expert",
                    .may_be_zero = true,
                    .zero_is_not_launched = true},
                   {.name = "hidden", .meaning = "columns"},
                   {.name = "expert",
                    .meaning = "which of the experts on this rank",
                    .may_be_zero = true}},
          .slots =
              {{.name = "x", .axes = ".., hidden", .type = SlotType::kBf16},
               {.name = "row_token", .axes = "room", .type = SlotType::kInt32},
               {.name = "counts", .axes = "..", .type = SlotType::kInt32, .use = Use::kCounts},
               {.name = "row_weight", .axes = "room", .type = SlotType::kFp32, .is_optional = true},
               {.name = "xs", .axes = "room, hidden", .is_result = true}},
          .work = work,
          // As gather_mul.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.8,
                    .floor = us(1.4),
                    .spread = 0.1,
                    .grid = {.axes = {"rows", "hidden"}, .ignored = "expert"},
                    .blocks = blocks,
                    .same_work = same_work},
          .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

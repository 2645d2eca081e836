#include <algorithm>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Each row of x is read once, a row's int32 token and float weight once.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double rows = size(dims, "rows");
  const double hidden = size(dims, "hidden");
  const double per_row = bytes_per_element(DType::kInt32) + bytes_per_element(DType::kFp32);
  return {.flops = Flops(rows * hidden),
          .bytes_read = Bytes(std::min(tokens, rows) * hidden * bytes_per_element(DType::kBf16) +
                              rows * per_row),
          .bytes_written = Bytes(rows * hidden * activation_bytes(dtype))};
}

// One for each row.
double blocks(DType /*dtype*/, const Dims& dims) { return std::max(1.0, size(dims, "rows")); }

}  // namespace

KernelSpec gather_mul_spec() {
  return {
      .name = "gather_mul",
      .summary =
          "rows of x in the order of their experts, scaled where the model weighs inputs; "
          "dtype is the format of the rows",
      .dims = {{.name = "tokens", .meaning = "rows of x"},
               {.name = "rows", .meaning = "rows written", .may_be_zero = true},
               {.name = "hidden", .meaning = "columns"}},
      .slots =
          {{.name = "x", .axes = "tokens, hidden", .type = SlotType::kBf16},
           {.name = "row_token", .axes = "room", .type = SlotType::kInt32},
           {.name = "counts", .axes = "1 | groups", .type = SlotType::kInt32, .use = Use::kCounts},
           {.name = "row_weight", .axes = "room", .type = SlotType::kFp32, .is_optional = true},
           {.name = "xs", .axes = "room, hidden | groups, .., hidden", .is_result = true}},
      .work = work,
      // 3.8 of 4.8 TB/s at 16,384 rows on an H200; the floor is the time of one row.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(1.4),
                .spread = 0.1,
                .grid = {.axes = {"rows", "tokens"}, .is_scattered = true},
                .blocks = blocks},
      .routed = RoutedRole::kGather,
      .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

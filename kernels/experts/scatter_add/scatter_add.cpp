#include <algorithm>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Reads each row and its float weight once, an int32 row per choice is left out of account.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double rows = size(dims, "rows");
  const double hidden = size(dims, "hidden");
  const double base = size(dims, "base");
  const double row = hidden * bytes_per_element(dtype);
  return {.flops = Flops(2 * rows * hidden),
          .bytes_read = Bytes(rows * (row + bytes_per_element(DType::kFp32)) + base * tokens * row),
          .bytes_written = Bytes(tokens * row)};
}

// One for each row.
double blocks(DType /*dtype*/, const Dims& dims) { return std::max(1.0, size(dims, "tokens")); }

}  // namespace

KernelSpec scatter_add_spec() {
  return {
      .name = "scatter_add",
      .summary =
          "out[tokens, hidden] = base + the weighed sum of each token's rows; dtype of rows, "
          "base and out",
      .dims = {{.name = "tokens", .meaning = "rows of out"},
               {.name = "rows", .meaning = "rows added", .may_be_zero = true},
               {.name = "hidden", .meaning = "columns"},
               {.name = "base",
                .meaning = "1: added to a base, 0: to nothing",
                .may_be_zero = true},
               {.name = "ranks",
                .meaning = "ranks that the rows came back from, each with room to spare; 1: "
                           "they lie one behind the other"}},
      .slots = {{.name = "y", .axes = ".., hidden | .., .., hidden"},
                {.name = "token_rows", .axes = "tokens, ..", .type = SlotType::kInt32},
                {.name = "counts",
                 .axes = "..",
                 .type = SlotType::kInt32,
                 .use = Use::kCounts,
                 .is_optional = true},
                {.name = "row_weight", .axes = "..", .type = SlotType::kFp32, .is_optional = true},
                {.name = "base", .axes = "tokens, hidden", .is_optional = true},
                {.name = "out", .axes = "tokens, hidden", .is_result = true, .may_alias = "base"}},
      .work = work,
      // 4.3 of 4.8 TB/s at 16,384 rows on an H200; the floor is the time of one row.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.9,
                .floor = us(1.4),
                .spread = 0.1,
                .grid = {.axes = {"rows", "tokens"}, .is_scattered = true},
                .blocks = blocks},
      .routed = RoutedRole::kScatter,
      .executed = {DType::kBf16}};
}

}  // namespace orrery

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

}  // namespace

KernelSpec scatter_add_spec() {
  return {.name = "scatter_add",
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
          .work = work};
}

}  // namespace orrery

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

}  // namespace

KernelSpec gather_mul_spec() {
  return {.name = "gather_mul",
          .summary =
              "rows of x in the order of their experts, scaled where the model weighs inputs; "
              "dtype is the format of the rows",
          .dims = {{.name = "tokens", .meaning = "rows of x"},
                   {.name = "rows", .meaning = "rows written", .may_be_zero = true},
                   {.name = "hidden", .meaning = "columns"}},
          .work = work};
}

}  // namespace orrery

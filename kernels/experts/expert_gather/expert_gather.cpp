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
          .work = work};
}

}  // namespace orrery

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// As gemm, of one expert's rows; nothing where it has none.
Work work(DType dtype, const Dims& dims) {
  const double m = size(dims, "m");
  const double n = size(dims, "n");
  const double k = size(dims, "k");
  if (m == 0) return {};
  return {.flops = Flops(2 * m * n * k),
          .bytes_read = Bytes(m * k * activation_bytes(dtype) + n * k * weight_bytes(dtype)),
          .bytes_written = Bytes(m * n * result_bytes(dtype))};
}

}  // namespace

KernelSpec expert_gemm_spec() {
  return {.name = "expert_gemm",
          .summary =
              "the rows of one expert through its w, launched with the count that the host has "
              "read; dtype of x and w",
          .dims = {{.name = "m",
                    .meaning = "rows of the expert",
                    .may_be_zero = true,
                    .zero_is_not_launched = true},
                   {.name = "n", .meaning = "rows of w: output columns"},
                   {.name = "k", .meaning = "input columns", .is_contraction = true},
                   {.name = "expert",
                    .meaning = "which of the experts on this rank",
                    .may_be_zero = true}},
          .work = work};
}

}  // namespace orrery

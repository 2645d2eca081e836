#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A gemm with its soft-max or sigmoid (5 flops per score). Scores are floats: experts are chosen
// by comparing them.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double experts_total = size(dims, "experts_total");
  return {.flops = Flops(tokens * experts_total * (2 * hidden + 5)),
          .bytes_read = Bytes((tokens + experts_total) * hidden * bytes_per_element(dtype)),
          .bytes_written = Bytes(tokens * experts_total * bytes_per_element(DType::kFp32))};
}

}  // namespace

KernelSpec routing_scores_spec() {
  return {.name = "routing_scores",
          .summary =
              "scores of all experts: soft-max or sigmoid of x[tokens, hidden] w[experts_total, "
              "hidden]^T; dtype of x and w",
          .dims = {{.name = "tokens", .meaning = "rows of x"},
                   {.name = "hidden", .meaning = "columns of x"},
                   {.name = "experts_total",
                    .meaning = "routed experts of the layer",
                    .must_be_whole = true}},
          .work = work};
}

}  // namespace orrery

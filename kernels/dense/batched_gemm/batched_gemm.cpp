#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A gemm for each batch, with its own w.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double m = size(dims, "m");
  const double n = size(dims, "n");
  const double k = size(dims, "k");
  return {
      .flops = Flops(2 * batch * m * n * k),
      .bytes_read = Bytes(batch * (m * k * activation_bytes(dtype) + n * k * weight_bytes(dtype))),
      .bytes_written = Bytes(batch * m * n * result_bytes(dtype))};
}

}  // namespace

KernelSpec batched_gemm_spec() {
  return {.name = "batched_gemm",
          .summary =
              "one GEMM y[m,n] = x[m,k] w[n,k] for each batch (per-head GEMMs of MLA); dtype "
              "of w and x",
          .dims = {{.name = "batch", .meaning = "independent GEMMs: heads"},
                   {.name = "m", .meaning = "rows of each x: tokens"},
                   {.name = "n", .meaning = "rows of each w: output columns"},
                   {.name = "k", .meaning = "input columns", .is_contraction = true}},
          .slots = {{.name = "x", .axes = "batch, m, k | m.., .."},
                    {.name = "w",
                     .axes = "batch, n, k | batch*n, k | batch*k, n",
                     .type = SlotType::kAny,
                     .use = Use::kWeight},
                    {.name = "y",
                     .axes = "batch, m, n | m, batch*n",
                     .type = SlotType::kBf16,
                     .is_result = true}},
          .work = work,
          .prior = {.arithmetic = Arithmetic::kGemm,
                    .flops = 0.6,
                    .hbm = 0.8,
                    .floor = us(3),
                    .spread = 0.04,
                    .grid = {.axes = {"batch", "m"}},
                    .is_issued_slowly = true},
          .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

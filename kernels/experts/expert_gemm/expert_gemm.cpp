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

KernelOp same_work(const KernelOp& op) {
  return {.kernel = "gemm",
          .dtype = op.dtype,
          .dims = {{"m", dim(op.dims, "m"), ""},
                   {"n", dim(op.dims, "n"), ""},
                   {"k", dim(op.dims, "k"), ""}}};
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
          .slots =
              {{.name = "x", .axes = "room, k"},
               {.name = "w", .axes = "experts, n, k", .use = Use::kWeight},
               {.name = "counts", .axes = "experts", .type = SlotType::kInt32, .use = Use::kCounts},
               {.name = "y", .axes = "room, n", .type = SlotType::kBf16, .is_result = true}},
          .work = work,
          // As gemm.
          .prior = {.arithmetic = Arithmetic::kGemm,
                    .flops = 0.6,
                    .hbm = 0.8,
                    .floor = us(2.4),
                    .spread = 0.05,
                    .grid = {.axes = {"m", "n", "k"}, .ignored = "expert"},
                    .same_work = same_work},
          .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

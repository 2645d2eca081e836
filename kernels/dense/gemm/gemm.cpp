#include "kernels/dense/gemm/choice.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 2 flops per multiply-add. Reads x and w, writes y.
Work work(DType dtype, const Dims& dims) {
  const double m = size(dims, "m");
  const double n = size(dims, "n");
  const double k = size(dims, "k");
  return {.flops = Flops(2 * m * n * k),
          .bytes_read = Bytes(m * k * activation_bytes(dtype) + n * k * weight_bytes(dtype)),
          .bytes_written = Bytes(m * n * result_bytes(dtype))};
}

// 1: weights are streamed past the rows, 2: cuBLASLt's.
int way(DType dtype, std::span<const std::int64_t> sizes) {
  return streaming_takes({.dtype = dtype, .m = sizes[0], .n = sizes[1], .k = sizes[2]}) ? 1 : 2;
}

GemmShape shape_of(DType dtype, const Dims& dims) {
  return {.dtype = dtype, .m = dim(dims, "m"), .n = dim(dims, "n"), .k = dim(dims, "k")};
}

int rounds(DType dtype, const Dims& dims) { return gemm_rounds(shape_of(dtype, dims)); }

double blocks(DType dtype, const Dims& dims) {
  return static_cast<double>(streaming_blocks(shape_of(dtype, dims)));
}

// It leaves no SMs.
LaunchWork launch(DType dtype, const Dims& dims, int /*num_sms*/) {
  return {.computed = computed_in_rounds(shape_of(dtype, dims))};
}

}  // namespace

KernelSpec gemm_spec() {
  return {
      .name = "gemm",
      .summary =
          "linear layer y[m,n] = x[m,k] w[n,k] (+ bias[n]); dtype is the format of w and x, y is "
          "bf16",
      .dims = {{.name = "m", .meaning = "rows of x: tokens"},
               {.name = "n", .meaning = "rows of w: output columns"},
               {.name = "k", .meaning = "input columns", .is_contraction = true}},
      .slots = {{.name = "x", .axes = ".., k", .type = SlotType::kOfOpOrBf16, .is_in_parts = true},
                {.name = "w", .axes = "n, k", .use = Use::kWeight},
                {.name = "bias",
                 .axes = "n",
                 .type = SlotType::kBf16,
                 .use = Use::kWeight,
                 .is_optional = true},
                {.name = "y", .axes = "m.., n", .type = SlotType::kBf16, .is_result = true}},
      .work = work,
      .way = way,
      .rounds = rounds,
      .prior = {.arithmetic = Arithmetic::kGemm,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(2.4),
                .spread = 0.05,
                .grid = {.axes = {"m", "n", "k"},
                         .shape_axes = 2,
                         .is_by_way = true,
                         .is_flat_for_long_calls = true},
                .blocks = blocks,
                .launch = launch},
      .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

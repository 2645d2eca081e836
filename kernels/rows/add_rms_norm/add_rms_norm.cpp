#include "kernels/dense/gemm/choice.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 5 flops per element: rms_norm and the addition. Reads bf16 x, residual and w; writes residual and
// y.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double bf16 = bytes_per_element(DType::kBf16);
  return {.flops = Flops(5 * tokens * hidden),
          .bytes_read = Bytes((2 * tokens + 1) * hidden * bf16),
          .bytes_written = Bytes(tokens * hidden * (bf16 + activation_bytes(dtype)))};
}

// The rows go through a gemm, which streams its weights where they are few.
bool gemm_streams_weights(const Dims& dims) { return dim(dims, "tokens") <= kStreamingMaxTokens; }

}  // namespace

KernelSpec add_rms_norm_spec() {
  return {
      .name = "add_rms_norm",
      .summary = "residual += x, then y = rms_norm(residual); dtype is the format of y",
      .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "hidden", .meaning = "columns"}},
      .slots = {{.name = "x", .axes = "tokens, hidden", .type = SlotType::kBf16},
                {.name = "residual", .axes = "tokens, hidden", .type = SlotType::kBf16},
                {.name = "gain", .axes = "hidden", .type = SlotType::kBf16, .use = Use::kWeight},
                {.name = "y", .axes = "tokens, hidden", .is_result = true},
                {.name = "sum",
                 .axes = "tokens, hidden",
                 .type = SlotType::kBf16,
                 .is_result = true,
                 .may_alias = "residual"}},
      .work = work,
      // As rms_norm.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.64,
                .floor = us(2),
                .spread = 0.2,
                .reads_what_was_written = true,
                .precedes_streamed_weights = gemm_streams_weights},
      .is_on_residual = true,
      .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

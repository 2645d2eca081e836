#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 4 flops per element: square, sum, scale, weight. Reads bf16 x and w.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double bf16 = bytes_per_element(DType::kBf16);
  return {.flops = Flops(4 * tokens * hidden),
          .bytes_read = Bytes((tokens + 1) * hidden * bf16),
          .bytes_written = Bytes(tokens * hidden * activation_bytes(dtype))};
}

}  // namespace

KernelSpec rms_norm_spec() {
  return {.name = "rms_norm",
          .summary =
              "y = x / rms(x) * w by rows; dtype is the format of y, fp8 is quantised on the way",
          .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "hidden", .meaning = "columns"}},
          .slots = {{.name = "x", .axes = "tokens, hidden..", .type = SlotType::kBf16},
                    {.name = "gain",
                     .axes = "hidden | ..",
                     .type = SlotType::kBf16,
                     .use = Use::kWeight},
                    {.name = "y", .axes = "tokens, hidden..", .is_result = true, .may_alias = "x"}},
          .work = work,
          // A norm fused with quantisation streams 2.14 of 3.35 TB/s on H100 (docs/data.md);
          // small kernels in a CUDA graph take 2 to 2.5 us. The spread is an assumption.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.64,
                    .floor = us(2),
                    .spread = 0.2,
                    .reads_what_was_written = true},
          .is_on_residual = true,
          .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

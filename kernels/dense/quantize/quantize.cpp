#include <algorithm>

#include "kernels/dense/gemm/choice.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 2 flops per element: the maximum of the group and the product with its scale.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  return {.flops = Flops(2 * tokens * hidden),
          .bytes_read = Bytes(tokens * hidden * bytes_per_element(DType::kBf16)),
          .bytes_written = Bytes(tokens * hidden * activation_bytes(dtype))};
}

// One for each row.
double blocks(DType /*dtype*/, const Dims& dims) { return std::max(1.0, size(dims, "tokens")); }

// The rows go through a gemm, which streams its weights where they are few.
bool gemm_streams_weights(const Dims& dims) { return dim(dims, "tokens") <= kStreamingMaxTokens; }

}  // namespace

KernelSpec quantize_spec() {
  return {
      .name = "quantize",
      .summary =
          "bf16 activations to a narrower format with scales; dtype is the format of the result",
      .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "hidden", .meaning = "columns"}},
      .slots = {{.name = "x", .axes = ".., hidden", .type = SlotType::kBf16, .is_in_parts = true},
                {.name = "y", .axes = "tokens.., hidden", .is_result = true}},
      .work = work,
      // A norm fused with quantisation streams 2.14 of 3.35 TB/s on H100 (docs/data.md);
      // small kernels in a CUDA graph take 2 to 2.5 us. The spread is half of the 95th
      // percentile of the held-out errors.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.64,
                .floor = us(2),
                .spread = 0.07,
                .grid = {.axes = {"tokens", "hidden"}},
                .blocks = blocks,
                .quantizes = true,
                .reads_what_was_written = true,
                .precedes_streamed_weights = gemm_streams_weights},
      .executed = {DType::kFp8}};
}

}  // namespace orrery

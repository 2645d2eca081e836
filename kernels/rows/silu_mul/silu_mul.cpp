#include <algorithm>

#include "kernels/dense/gemm/choice.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// gate / (1 + exp(-gate)) * up: 5 flops per element of y with the sign, the exponential counted
// once.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double ffn = size(dims, "ffn");
  return {.flops = Flops(5 * tokens * ffn),
          .bytes_read = Bytes(2 * tokens * ffn * bytes_per_element(DType::kBf16)),
          .bytes_written = Bytes(tokens * ffn * activation_bytes(dtype))};
}

// One for each row.
double blocks(DType /*dtype*/, const Dims& dims) { return std::max(1.0, size(dims, "tokens")); }

// The rows go through a gemm, which streams its weights where they are few.
bool gemm_streams_weights(const Dims& dims) { return dim(dims, "tokens") <= kStreamingMaxTokens; }

}  // namespace

KernelSpec silu_mul_spec() {
  return {
      .name = "silu_mul",
      .summary = "y = silu(gate) * up of x[tokens, 2 ffn]; dtype is the format of y",
      .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "ffn", .meaning = "columns of y"}},
      .slots = {{.name = "x",
                 .axes = "tokens.., 2*ffn | experts, room, 2*ffn",
                 .type = SlotType::kBf16},
                {.name = "num_rows",
                 .axes = "1",
                 .type = SlotType::kInt32,
                 .use = Use::kCounts,
                 .is_optional = true},
                {.name = "y", .axes = "tokens.., ffn | experts, room, ffn", .is_result = true}},
      .work = work,
      // Streams 4.1 of 4.8 TB/s on H200 (docs/data.md); small kernels in a CUDA graph take 2
      // to 2.5 us. The spread is an assumption.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.85,
                .floor = us(2),
                .spread = 0.2,
                .blocks = blocks,
                .reads_what_was_written = true,
                .precedes_streamed_weights = gemm_streams_weights},
      .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

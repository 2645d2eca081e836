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

}  // namespace

KernelSpec silu_mul_spec() {
  return {
      .name = "silu_mul",
      .summary = "y = silu(gate) * up of x[tokens, 2 ffn]; dtype is the format of y",
      .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "ffn", .meaning = "columns of y"}},
      .work = work};
}

}  // namespace orrery

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

}  // namespace

KernelSpec quantize_spec() {
  return {
      .name = "quantize",
      .summary =
          "bf16 activations to a narrower format with scales; dtype is the format of the result",
      .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "hidden", .meaning = "columns"}},
      .work = work};
}

}  // namespace orrery

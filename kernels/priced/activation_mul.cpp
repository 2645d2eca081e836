#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// As of silu_mul: an exponential or a hyperbolic tangent counted once.
Work work(DType dtype, const Dims& dims) {
  const double elements = size(dims, "tokens") * size(dims, "ffn");
  return {.flops = Flops(5 * elements),
          .bytes_read = Bytes(2 * elements * bytes_per_element(DType::kBf16)),
          .bytes_written = Bytes(elements * activation_bytes(dtype))};
}

}  // namespace

KernelSpec activation_mul_spec() {
  return {
      .name = "activation_mul",
      .summary =
          "y = f(gate) * up of x[tokens, 2 ffn] where f is not silu, such as gelu; dtype is "
          "the format of y",
      .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "ffn", .meaning = "columns of y"}},
      .slots = {{.name = "x", .axes = "tokens, 2*ffn", .type = SlotType::kBf16},
                {.name = "y", .axes = "tokens, ffn", .is_result = true}},
      .work = work,
      // As silu_mul, which streams as much.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.85,
                .floor = us(2),
                .spread = 0.2,
                .reads_what_was_written = true}};
}

}  // namespace orrery

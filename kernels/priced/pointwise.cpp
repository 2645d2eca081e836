#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// As of silu_mul without its product: gelu, squared ReLU, a cap by tanh or a factor, which differ
// by less than the prior's spread.
Work work(DType dtype, const Dims& dims) {
  const double elements = size(dims, "tokens") * size(dims, "width");
  return {.flops = Flops(4 * elements),
          .bytes_read = Bytes(elements * bytes_per_element(DType::kBf16)),
          .bytes_written = Bytes(elements * activation_bytes(dtype))};
}

}  // namespace

KernelSpec pointwise_spec() {
  return {.name = "pointwise",
          .summary = "y = f(x) for each element; dtype is the format of y",
          .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "width", .meaning = "columns"}},
          .slots = {{.name = "x", .axes = "tokens, width", .type = SlotType::kBf16},
                    {.name = "y", .axes = "tokens, width", .is_result = true, .may_alias = "x"}},
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

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// An exponential, a sum, a quotient and a product for each element, as of silu_mul without its up;
// the norm of its heads, where there is a gain, another four.
Work work(DType /*dtype*/, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double width = size(dims, "width");
  const double row = bytes_per_element(DType::kBf16);
  return {.flops = Flops(8 * tokens * width),
          .bytes_read = Bytes(tokens * (width + size(dims, "gate_width")) * row),
          .bytes_written = Bytes(tokens * width * row)};
}

}  // namespace

KernelSpec gate_mul_spec() {
  return {
      .name = "gate_mul",
      .summary = "y = x times an activation of the gate; with a gain x is normed by heads before",
      .dims = {{.name = "tokens", .meaning = "rows"},
               {.name = "width", .meaning = "columns of x and y"},
               {.name = "gate_width", .meaning = "columns of the gate; 1: one for each row"}},
      .slots = {{.name = "gate", .axes = "tokens.., ..", .type = SlotType::kBf16},
                {.name = "x", .axes = ".., width", .type = SlotType::kBf16, .is_in_parts = true},
                {.name = "gain",
                 .axes = "..",
                 .type = SlotType::kBf16,
                 .use = Use::kWeight,
                 .is_optional = true},
                {.name = "y",
                 .axes = "tokens, width",
                 .type = SlotType::kBf16,
                 .is_result = true,
                 .may_alias = "x"}},
      .work = work,
      // As silu_mul, which streams as much.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.85,
                .floor = us(2),
                .spread = 0.2,
                .reads_what_was_written = true},
      .is_sum = true};
}

}  // namespace orrery

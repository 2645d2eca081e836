#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// One sum per element.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double bytes = tokens * hidden * bytes_per_element(dtype);
  return {.flops = Flops(tokens * hidden),
          .bytes_read = Bytes(2 * bytes),
          .bytes_written = Bytes(bytes)};
}

}  // namespace

KernelSpec residual_add_spec() {
  return {.name = "residual_add",
          .summary = "sum = residual + x; dtype is the format of all",
          .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "hidden", .meaning = "columns"}},
          .slots = {{.name = "residual", .axes = "tokens, hidden"},
                    {.name = "x", .axes = "tokens, hidden"},
                    {.name = "sum",
                     .axes = "tokens, hidden",
                     .is_result = true,
                     .may_alias = "residual"}},
          .work = work,
          // As silu_mul, which streams as much.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.85,
                    .floor = us(2),
                    .spread = 0.2,
                    .reads_what_was_written = true},
          .is_on_residual = true,
          .is_sum = true,
          .executed = {DType::kBf16}};
}

}  // namespace orrery

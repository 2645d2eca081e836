#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A product and a sum for each tap, and silu (5 flops, as of silu_mul). The taps before a
// sequence's first new token are its state.
Work work(DType /*dtype*/, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double channels = size(dims, "channels");
  const double width = size(dims, "width");
  const double state = size(dims, "sequences") * channels * (width - 1);
  const double bytes = bytes_per_element(DType::kBf16);
  return {.flops = Flops(tokens * channels * (2 * width + 5)),
          .bytes_read = Bytes((tokens * channels + channels * width + state) * bytes),
          .bytes_written = Bytes((tokens * channels + state) * bytes)};
}

}  // namespace

KernelSpec causal_conv_spec() {
  return {
      .name = "causal_conv",
      .summary =
          "silu of a causal convolution of each column by itself, over the tokens of a sequence",
      .dims = {{.name = "tokens", .meaning = "new tokens"},
               {.name = "sequences", .meaning = "that they are of"},
               {.name = "channels", .meaning = "columns on this rank"},
               {.name = "width", .meaning = "taps, the token itself included"}},
      .slots =
          {{.name = "x", .axes = "tokens.., ..", .type = SlotType::kBf16},
           {.name = "weight",
            .axes = "channels, width",
            .type = SlotType::kBf16,
            .use = Use::kWeight},
           {.name = "state", .axes = ".., ..", .use = Use::kCache},
           {.name = "y", .axes = "tokens.., channels", .type = SlotType::kBf16, .is_result = true},
           {.name = "new_state",
            .axes = ".., ..",
            .use = Use::kCache,
            .is_result = true,
            .may_alias = "state"}},
      .work = work,
      // As silu_mul, which streams as much; states are rows apart, so the spread is larger. No
      // table has it.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.7,
                .floor = us(3),
                .spread = 0.3,
                .reads_what_was_written = true}};
}

}  // namespace orrery

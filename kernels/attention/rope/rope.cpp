#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A rotation of each pair takes 4 products and 2 sums: 3 flops per element. Reads the elements and,
// for each token, head_dim / 2 cosines and sines.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double heads = size(dims, "heads");
  const double head_dim = size(dims, "head_dim");
  const double bytes = tokens * heads * head_dim * bytes_per_element(dtype);
  return {.flops = Flops(3 * tokens * heads * head_dim),
          .bytes_read = Bytes(bytes + tokens * head_dim * bytes_per_element(dtype)),
          .bytes_written = Bytes(bytes)};
}

}  // namespace

KernelSpec rope_spec() {
  return {
      .name = "rope",
      .summary = "rotary position embedding of queries and keys in place; dtype is their format",
      .dims = {{.name = "tokens", .meaning = "rows"},
               {.name = "heads", .meaning = "heads rotated: query and key heads"},
               {.name = "head_dim", .meaning = "rotated elements per head"}},
      .slots = {{.name = "q", .axes = "tokens, .."},
                {.name = "k", .axes = "tokens, ..", .is_optional = true},
                {.name = "rotated_q", .axes = "tokens, ..", .is_result = true, .may_alias = "q"},
                {.name = "rotated_k",
                 .axes = "tokens, ..",
                 .is_result = true,
                 .is_optional = true,
                 .may_alias = "k"}},
      .work = work,
      // Assumed to stream as silu_mul does; the spread is an assumption too.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.85,
                .floor = us(2),
                .spread = 0.3,
                .reads_what_was_written = true},
      .executed = {DType::kBf16}};
}

}  // namespace orrery

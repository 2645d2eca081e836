#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A product and a sum for each element of a part; the weight of a part is an exponential for each
// head, which is not counted.
Work work(DType /*dtype*/, const Dims& dims) {
  const double parts = size(dims, "parts");
  const double rows = size(dims, "tokens") * size(dims, "heads");
  const double elements = rows * size(dims, "head_dim");
  const double part_bytes = elements * bytes_per_element(DType::kBf16);
  return {.flops = Flops(2 * parts * elements),
          .bytes_read = Bytes(parts * (part_bytes + rows * bytes_per_element(DType::kFp32))),
          .bytes_written = Bytes(part_bytes)};
}

}  // namespace

KernelSpec attention_merge_spec() {
  return {.name = "attention_merge",
          .summary =
              "attention over all keys of results over parts of them, each weighed by the exponent "
              "of its log-sum-exp",
          .dims = {{.name = "parts", .meaning = "results of each row"},
                   {.name = "tokens", .meaning = "rows"},
                   {.name = "heads", .meaning = "heads on this rank"},
                   {.name = "head_dim", .meaning = "elements of a head's result"}},
          .slots = {{.name = "parts",
                     .axes = ".., heads*head_dim | parts, tokens, heads*head_dim",
                     .type = SlotType::kBf16,
                     .is_in_parts = true},
                    {.name = "lse",
                     .axes = ".., heads | parts, tokens, heads",
                     .type = SlotType::kFp32,
                     .is_in_parts = true},
                    {.name = "out",
                     .axes = "tokens, heads*head_dim",
                     .type = SlotType::kBf16,
                     .is_result = true}},
          .work = work,
          // As residual_add, which streams two parts. The spread is an assumption.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.85,
                    .floor = us(2),
                    .spread = 0.2,
                    .reads_what_was_written = true},
          .executed = {DType::kBf16}};
}

}  // namespace orrery

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// One comparison per logit; writes an int32 id per row.
Work work(DType dtype, const Dims& dims) {
  const double seqs = size(dims, "seqs");
  const double vocab = size(dims, "vocab");
  return {.flops = Flops(seqs * vocab),
          .bytes_read = Bytes(seqs * vocab * bytes_per_element(dtype)),
          .bytes_written = Bytes(seqs * bytes_per_element(DType::kInt32))};
}

}  // namespace

KernelSpec sample_spec() {
  return {
      .name = "sample",
      .summary = "next token of each sequence from its logits; dtype is the format of the logits",
      .dims = {{.name = "seqs", .meaning = "rows of logits"},
               {.name = "vocab", .meaning = "columns", .must_be_whole = true}},
      .slots = {{.name = "logits", .axes = "seqs, vocab"},
                {.name = "ids", .axes = "seqs", .type = SlotType::kInt32, .is_result = true}},
      .work = work,
      // Assumed to stream as norms do; the spread is an assumption too.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.64,
                .floor = us(2),
                .spread = 0.3},
      .keeps_inputs = true,
      .executed = {DType::kBf16}};
}

}  // namespace orrery

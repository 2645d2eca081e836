#include "kernels/priced/delta_rule.h"

namespace orrery {

// FlashKDA's BENCHMARK_H20.md (MoonshotAI): fla_chunk_gated_delta_rule of 8,192 tokens, 64 heads of
// 128, takes 2.0 ms on an H20, of 96 heads 3.2 ms: 0.17 of its 148 TFLOP/s by this work. Its four
// kernels write and read w, u, the new values and a state for each 64 tokens, so that they move
// four times the least bytes, at 0.8 of the HBM rate. One GPU of little arithmetic is all that is
// known: the spread is an assumption.
KernelSpec delta_rule_prefill_spec() {
  return delta_rule_spec(
      "delta_rule_prefill",
      "gated delta rule over prompts, in chunks; dtype is the format of the states",
      {.arithmetic = Arithmetic::kAttention,
       .flops = 0.17,
       .hbm = 0.2,
       .floor = us(40),
       .spread = 0.4});
}

}  // namespace orrery

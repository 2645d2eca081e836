#include "kernels/priced/delta_rule.h"

namespace orrery {

// FLA's chunk_gated_delta_rule on an H20 (MoonshotAI/FlashKDA, BENCHMARK_H20.md): 8,192 tokens, 64
// heads of 128 in 2.0 ms, 96 heads in 3.2. Its four kernels write and read w, u, the new values and
// a state for each 64 tokens, so they move four times the least bytes at 0.8 of the HBM rate: 0.67
// and 1.01 ms. What is left is 0.27 and 0.24 of 148 TFLOP/s. On an H100 (flashinfer pull request
// 3866) 8 value heads take 0.18 ms for two prompts of 4,096 tokens, of which this has 0.13, and
// 0.26 for one of 8,192: chunks of a prompt follow each other, which is not in it, hence the
// spread.
KernelSpec delta_rule_prefill_spec() {
  return delta_rule_spec(
      "delta_rule_prefill",
      "gated delta rule over prompts, in chunks; dtype is the format of the states",
      {.arithmetic = Arithmetic::kAttention,
       .flops = 0.25,
       .hbm = 0.2,
       .floor = us(40),
       .spread = 0.4});
}

}  // namespace orrery

#include "kernels/priced/ssm.h"

namespace orrery {

// Five kernels over chunks of tokens, which write and read a state for each chunk as those of the
// gated delta rule do: its prior (delta_rule_prefill.cpp), with a wider spread. No table has it.
KernelSpec ssm_prefill_spec() {
  return ssm_spec("ssm_prefill",
                  "Mamba-2's scan over prompts, in chunks; dtype is the format of the states",
                  {.arithmetic = Arithmetic::kAttention,
                   .flops = 0.25,
                   .hbm = 0.2,
                   .floor = us(40),
                   .spread = 0.5});
}

}  // namespace orrery

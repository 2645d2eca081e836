#include "kernels/priced/ssm.h"

namespace orrery {

// Reads and writes each state once, as the gated delta rule does, whose assumptions it takes. No
// table has it.
KernelSpec ssm_decode_spec() {
  return ssm_spec(
      "ssm_decode",
      "Mamba-2's scan for one new token of each sequence; dtype is the format of the states",
      {.arithmetic = Arithmetic::kRows, .flops = 0.6, .hbm = 0.6, .floor = us(5), .spread = 0.3});
}

}  // namespace orrery

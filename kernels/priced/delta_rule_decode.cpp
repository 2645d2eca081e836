#include "kernels/priced/delta_rule.h"

namespace orrery {

// Reads and writes each state once. No table has it; 0.6 of the HBM rate lies between scattered
// rows (kv_append, 0.73) and kernels that wait for what they read before they write it. Floor and
// spread are assumptions.
KernelSpec delta_rule_decode_spec() {
  return delta_rule_spec(
      "delta_rule_decode",
      "gated delta rule for one new token of each sequence; dtype is the format of the states",
      {.arithmetic = Arithmetic::kRows, .flops = 0.6, .hbm = 0.6, .floor = us(5), .spread = 0.3});
}

}  // namespace orrery

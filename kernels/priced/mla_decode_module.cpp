#include "kernels/kernel_spec.h"
#include "kernels/priced/mla_module.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Absorbed form: kv_b acts on q and on the result of the new token only, attention as mla_decode.
// The new token's latent is at hand, so context - 1 tokens are read from the cache.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double context = size(dims, "context");
  const MlaModule m = mla_module(dims);
  const double flops =
      2 * batch * m.weights() + 2 * batch * m.heads * context * (2 * m.kv_lora_rank + m.rope);
  return mla_module_work(dtype, m, flops, batch, batch * (context - 1));
}

}  // namespace

KernelSpec mla_decode_module_spec() {
  return {.name = "mla_decode_module",
          .summary =
              "whole MLA attention of one layer in decode, projections included; dtype is the gemm "
              "format",
          .dims = mla_module_dims(
              {{.name = "batch", .meaning = "sequences"},
               {.name = "context", .meaning = "mean tokens per sequence, the new one included"}}),
          .slots = mla_module_slots(),
          .work = work,
          .prior = {.arithmetic = Arithmetic::kAttention,
                    .flops = 0.6,
                    .hbm = 0.8,
                    .floor = us(12),
                    .spread = 0.02,
                    .grid = {.axes = {"batch", "context", "heads"}},
                    .composite = Composite::kAttentionModule},
          .instead = "expected an engine profile with mla_form: auto"};
}

}  // namespace orrery

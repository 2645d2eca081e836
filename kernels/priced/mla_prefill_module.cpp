#include "kernels/kernel_spec.h"
#include "kernels/priced/mla_module.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Expanded form: q, latent and output projections of the new tokens, keys and values of all tokens
// from their latents, causal attention. Reads weights, input and cached latents; writes output and
// latents.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double query = size(dims, "query");
  const double context = size(dims, "context");
  const MlaModule m = mla_module(dims);
  const double tokens = batch * query;
  const double pairs = batch * causal_pairs(query, context, context + query);
  const double flops = 2 * tokens * (m.q_weights + m.kv_a_weights + m.o_weights) +
                       2 * batch * (context + query) * m.kv_b_weights +
                       2 * m.heads * (m.nope + m.rope + m.v) * pairs;
  return mla_module_work(dtype, m, flops, tokens, batch * context);
}

}  // namespace

KernelSpec mla_prefill_module_spec() {
  return {.name = "mla_prefill_module",
          .summary =
              "whole MLA attention of one layer in prefill, projections included; dtype is the "
              "gemm format",
          .dims = mla_module_dims({{.name = "batch", .meaning = "sequences"},
                                   {.name = "query", .meaning = "new tokens per sequence"},
                                   {.name = "context",
                                    .meaning = "cached tokens per sequence before the new ones",
                                    .may_be_zero = true}}),
          .slots = mla_module_slots(),
          .work = work,
          .prior = {.arithmetic = Arithmetic::kAttention,
                    .flops = 0.6,
                    .hbm = 0.8,
                    .floor = us(12),
                    .spread = 0.04,
                    .grid = {.axes = {"batch", "query", "heads"}},
                    .composite = Composite::kAttentionModule},
          .instead = "expected an engine profile with mla_form: auto"};
}

}  // namespace orrery

#include "kernels/kernel_spec.h"
#include "kernels/mla_module.h"
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
          .dims = {{.name = "batch", .meaning = "sequences"},
                   {.name = "query", .meaning = "new tokens per sequence"},
                   {.name = "context",
                    .meaning = "cached tokens per sequence before the new ones",
                    .may_be_zero = true},
                   {.name = "heads",
                    .meaning = "heads on this rank; the output projection sums over them",
                    .is_contraction = true},
                   {.name = "hidden", .meaning = "columns of the residual stream"},
                   {.name = "q_lora_rank",
                    .meaning = "elements of the latent of q; 0: q is projected directly",
                    .may_be_zero = true},
                   {.name = "kv_lora_rank", .meaning = "elements of the latent of k and v"},
                   {.name = "qk_nope_head_dim", .meaning = "unrotated elements of a query or key"},
                   {.name = "qk_rope_head_dim", .meaning = "rotated elements of a query or key"},
                   {.name = "v_head_dim", .meaning = "elements of a value"},
                   {.name = "kv_bits", .meaning = "bits per cached element"}},
          .work = work};
}

}  // namespace orrery

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// As mla_decode, whose heads share one key; here those of all new tokens do.
KernelOp same_work(const KernelOp& op) {
  return {.kernel = "mla_decode",
          .dtype = op.dtype,
          .dims = {{"batch", dim(op.dims, "batch"), ""},
                   {"context", dim(op.dims, "context"), ""},
                   {"heads", dim(op.dims, "heads") * dim(op.dims, "query"), ""},
                   {"kv_lora_rank", dim(op.dims, "kv_lora_rank"), ""},
                   {"rope_dim", dim(op.dims, "rope_dim"), ""}}};
}

Work work(DType dtype, const Dims& dims) {
  return work_of(same_work({.kernel = "mla_verify", .dtype = dtype, .dims = dims}));
}

}  // namespace

KernelSpec mla_verify_spec() {
  return {
      .name = "mla_verify",
      .summary =
          "absorbed MLA of a few new tokens per sequence, drafts that are verified, over the "
          "latent cache; dtype is the cache format",
      .dims = {{.name = "batch", .meaning = "sequences"},
               {.name = "query", .meaning = "new tokens per sequence"},
               {.name = "context", .meaning = "mean tokens per sequence, the new ones included"},
               {.name = "heads", .meaning = "heads on this rank"},
               {.name = "kv_lora_rank", .meaning = "elements of the latent of a token"},
               {.name = "rope_dim", .meaning = "elements of its rotated key"}},
      .slots = {{.name = "latent", .axes = "rows, heads*kv_lora_rank", .type = SlotType::kBf16},
                {.name = "q", .axes = ".., ..", .type = SlotType::kBf16},
                {.name = "cache", .axes = ".., ..", .use = Use::kCache},
                {.name = "out",
                 .axes = "rows, heads*kv_lora_rank",
                 .type = SlotType::kBf16,
                 .is_result = true}},
      .work = work,
      // As mla_decode.
      .prior = {.arithmetic = Arithmetic::kAttention,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(12),
                .spread = 0.1,
                .grid = {.axes = {"batch", "context", "heads"}},
                .same_work = same_work}};
}

}  // namespace orrery

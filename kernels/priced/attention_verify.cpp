#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// The new tokens of a sequence are rows of one tile, as the query heads of a group are
// (FlashAttention 3: pack_gqa), so `query` tokens of `heads` are one token of as many more heads.
KernelOp same_work(const KernelOp& op) {
  return {.kernel = "attention_decode",
          .dtype = op.dtype,
          .dims = {{"batch", dim(op.dims, "batch"), ""},
                   {"context", dim(op.dims, "context"), ""},
                   {"heads", dim(op.dims, "heads") * dim(op.dims, "query"), ""},
                   {"kv_heads", dim(op.dims, "kv_heads"), ""},
                   {"head_dim", dim(op.dims, "head_dim"), ""},
                   {"window", dim(op.dims, "window"), ""}}};
}

// Each token counts the whole context, a few keys more than its mask leaves.
Work work(DType dtype, const Dims& dims) {
  return work_of(same_work({.kernel = "attention_verify", .dtype = dtype, .dims = dims}));
}

}  // namespace

KernelSpec attention_verify_spec() {
  return {
      .name = "attention_verify",
      .summary =
          "attention of a few new tokens per sequence, drafts that are verified, over its "
          "cache; dtype is the KV format",
      .dims = {{.name = "batch", .meaning = "sequences"},
               {.name = "query", .meaning = "new tokens per sequence"},
               {.name = "context", .meaning = "mean tokens per sequence, the new ones included"},
               {.name = "heads", .meaning = "query heads on this rank"},
               {.name = "kv_heads", .meaning = "key and value heads on this rank"},
               {.name = "head_dim", .meaning = "elements per head"},
               {.name = "window",
                .meaning = "newest keys each token sees, itself included; 2^30: all"}},
      .slots = {{.name = "q", .axes = ".., ..", .type = SlotType::kBf16},
                {.name = "cache", .axes = ".., ..", .use = Use::kCache},
                {.name = "out",
                 .axes = ".., heads*head_dim",
                 .type = SlotType::kBf16,
                 .is_result = true}},
      .work = work,
      // As attention_decode.
      .prior = {.arithmetic = Arithmetic::kAttention,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(8),
                .spread = 0.1,
                .grid = {.axes = {"batch", "context", "heads"}, .tied = "kv_heads"},
                .same_work = same_work}};
}

}  // namespace orrery

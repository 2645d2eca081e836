#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Keys and values of all sequences are gathered from the cache, written once for each query head
// and read by attention, which multiplies every query with every key and adds a mask of bf16
// (transformers 5.17, integrations/sdpa_paged.py). Gathering reads the cache's format.
Work work(DType dtype, const Dims& dims) {
  const double queries = size(dims, "queries");
  const double keys = size(dims, "keys");
  const double columns = size(dims, "heads") * size(dims, "head_dim");
  const double gathered = 2 * keys * size(dims, "kv_heads") * size(dims, "head_dim");
  const double bf16 = bytes_per_element(DType::kBf16);
  const double repeated = 2 * keys * columns * bf16;
  const double mask = queries * keys * bf16;
  const double out = queries * columns * bf16;
  return {.flops = Flops(4 * columns * queries * keys),
          .bytes_read = Bytes(gathered * (bytes_per_element(dtype) + bf16) + repeated + mask + out),
          .bytes_written = Bytes(gathered * bf16 + repeated + out)};
}

}  // namespace

// The floor is of about eight kernels launched one by one; rates are those of other attention. No
// shipped table has it, rows come from traces (orrery import torch-profile).
KernelSpec attention_packed_spec() {
  return {.name = "attention_packed",
          .summary =
              "attention of all sequences of a step in one call with a mask: every new token "
              "against every key; dtype is the KV format",
          .dims = {{.name = "queries", .meaning = "new tokens of all sequences"},
                   {.name = "keys", .meaning = "tokens of all sequences, the new ones included"},
                   {.name = "heads", .meaning = "query heads on this rank"},
                   {.name = "kv_heads", .meaning = "key and value heads on this rank"},
                   {.name = "head_dim", .meaning = "elements per head"}},
          .slots = {{.name = "q", .axes = ".., ..", .type = SlotType::kBf16},
                    {.name = "cache", .axes = ".., ..", .use = Use::kCache},
                    {.name = "out",
                     .axes = ".., heads*head_dim",
                     .type = SlotType::kBf16,
                     .is_result = true}},
          .work = work,
          .prior = {.arithmetic = Arithmetic::kAttention,
                    .flops = 0.6,
                    .hbm = 0.8,
                    .floor = us(40),
                    .spread = 0.3,
                    .grid = {.axes = {"queries", "keys"}, .is_scattered = true}}};
}

}  // namespace orrery

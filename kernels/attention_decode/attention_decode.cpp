#include <algorithm>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 2 flops per multiply-add in each of q k^T and p v, over the pairs that the causal mask and the
// window leave; softmax is not counted, as usual for MFU. Reads bf16 q and each visible key and
// value once for a group of query heads; writes bf16.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double heads = size(dims, "heads");
  const double kv_heads = size(dims, "kv_heads");
  const double head_dim = size(dims, "head_dim");
  const double keys = batch * std::min(size(dims, "context"), size(dims, "window"));
  const double q_bytes = batch * heads * head_dim * bytes_per_element(DType::kBf16);
  return {.flops = Flops(4 * heads * head_dim * keys),
          .bytes_read = Bytes(q_bytes + 2 * keys * kv_heads * head_dim * bytes_per_element(dtype)),
          .bytes_written = Bytes(q_bytes)};
}

}  // namespace

KernelSpec attention_decode_spec() {
  return {
      .name = "attention_decode",
      .summary = "attention of one new token per sequence over its cache; dtype is the KV format",
      .dims = {{.name = "batch", .meaning = "sequences"},
               {.name = "context", .meaning = "mean tokens per sequence, the new one included"},
               {.name = "heads", .meaning = "query heads on this rank"},
               {.name = "kv_heads", .meaning = "key and value heads on this rank"},
               {.name = "head_dim", .meaning = "elements per head"},
               {.name = "window",
                .meaning = "newest keys the token sees, itself included; 2^30: all"}},
      .work = work};
}

}  // namespace orrery

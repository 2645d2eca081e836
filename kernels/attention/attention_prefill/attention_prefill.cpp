#include "kernels/attention/attention_prefill/launch_work.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 2 flops per multiply-add in each of q k^T and p v, over the pairs that the causal mask and the
// window leave; softmax is not counted, as usual for MFU. Reads bf16 q and each visible key and
// value once for a group of query heads; writes bf16.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double query = size(dims, "query");
  const double heads = size(dims, "heads");
  const double kv_heads = size(dims, "kv_heads");
  const double head_dim = size(dims, "head_dim");
  const double context = size(dims, "context");
  const double window = size(dims, "window");
  const double pairs = batch * causal_pairs(query, context, window);
  const double keys = batch * causal_keys(query, context, window);
  const double q_bytes = batch * query * heads * head_dim * bytes_per_element(DType::kBf16);
  return {.flops = Flops(4 * heads * head_dim * pairs),
          .bytes_read = Bytes(q_bytes + 2 * keys * kv_heads * head_dim * bytes_per_element(dtype)),
          .bytes_written = Bytes(q_bytes)};
}

// Of queries in a tile.
std::int64_t tile_rows(std::int64_t head_dim) { return head_dim == 64 ? 192 : 128; }

int rounds(DType /*dtype*/, const Dims& dims) {
  return prefill_rounds(dims, tile_rows(dim(dims, "head_dim")));
}

// Fitted to the 1,422 rows of attention_prefill.csv of an H200 of less than 3 ms (graphs, cold):
// off by 2.8 % in the median and 10 % at the 95th percentile.
LaunchWork launch(DType dtype, const Dims& dims, int num_sms) {
  const PrefillShape shape{.batch = dim(dims, "batch"),
                           .query = dim(dims, "query"),
                           .context = dim(dims, "context"),
                           .heads = dim(dims, "heads"),
                           .window = dim(dims, "window"),
                           .tile_rows = tile_rows(dim(dims, "head_dim"))};
  return prefill_launch(
      shape,
      {.step = us(1.54), .end_steps = 0.75, .begin = us(4.4), .second = us(4.1), .rate = 3.05e12},
      work(dtype, dims).flops, num_sms);
}

}  // namespace

KernelSpec attention_prefill_spec() {
  return {
      .name = "attention_prefill",
      .summary =
          "causal attention of new tokens over themselves and the cached ones; dtype is the KV "
          "format",
      .dims = {{.name = "batch", .meaning = "sequences"},
               {.name = "query", .meaning = "new tokens per sequence"},
               {.name = "context",
                .meaning = "cached tokens per sequence before the new ones",
                .may_be_zero = true},
               {.name = "heads", .meaning = "query heads on this rank"},
               {.name = "kv_heads", .meaning = "key and value heads on this rank"},
               {.name = "head_dim", .meaning = "elements per head", .executed = {64, 128}},
               {.name = "window",
                .meaning = "newest keys each token sees, itself included; 2^30: all"}},
      .slots = {{.name = "q", .axes = ".., ..", .type = SlotType::kBf16},
                {.name = "cache", .axes = ".., ..", .use = Use::kCache},
                {.name = "shards", .axes = ".., ..", .type = SlotType::kOfOp, .is_optional = true},
                {.name = "out",
                 .axes = ".., heads*head_dim",
                 .type = SlotType::kBf16,
                 .is_result = true},
                {.name = "lse",
                 .axes = ".., heads",
                 .type = SlotType::kFp32,
                 .is_result = true,
                 .is_optional = true}},
      .work = work,
      .rounds = rounds,
      .prior = {.arithmetic = Arithmetic::kAttention,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(8),
                .spread = 0.06,
                .grid = {.axes = {"batch", "query", "heads"}, .tied = "kv_heads"},
                .launch = launch,
                .launch_holds_across_ways = true},

      .executed = {DType::kBf16}};
}

}  // namespace orrery

#include "kernels/attention/attention_prefill/launch_work.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// As attention_prefill with a key and a value per head, of different sizes. The expansion from the
// latent cache is gemms of its own.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double query = size(dims, "query");
  const double heads = size(dims, "heads");
  const double qk_head_dim = size(dims, "qk_head_dim");
  const double v_head_dim = size(dims, "v_head_dim");
  const double context = size(dims, "context");
  const double all = context + query;
  const double pairs = batch * causal_pairs(query, context, all);
  const double bf16 = bytes_per_element(DType::kBf16);
  const double kv_elements = batch * all * heads * (qk_head_dim + v_head_dim);
  return {.flops = Flops(2 * heads * (qk_head_dim + v_head_dim) * pairs),
          .bytes_read = Bytes(batch * query * heads * qk_head_dim * bf16 +
                              kv_elements * bytes_per_element(dtype)),
          .bytes_written = Bytes(batch * query * heads * v_head_dim * bf16)};
}

int rounds(DType /*dtype*/, const Dims& dims) { return prefill_rounds(dims, 128); }

// Fitted to the 251 rows of mla_prefill.csv of an H200 of less than 3 ms (graphs, cold): off by 4.9
// % in the median and 16 % at the 95th percentile.
LaunchWork launch(DType dtype, const Dims& dims, int num_sms) {
  const PrefillShape shape{.batch = dim(dims, "batch"),
                           .query = dim(dims, "query"),
                           .context = dim(dims, "context"),
                           .heads = dim(dims, "heads"),
                           .window = dim(dims, "context") + dim(dims, "query"),
                           .tile_rows = 128};
  return prefill_launch(
      shape,
      {.step = us(1.78), .end_steps = 1.5, .begin = us(3), .second = us(5.7), .rate = 6.3e12},
      work(dtype, dims).flops, num_sms);
}

}  // namespace

KernelSpec mla_prefill_spec() {
  return {
      .name = "mla_prefill",
      .summary =
          "causal MLA with keys and values expanded to all heads; dtype is the format of k and v",
      .dims = {{.name = "batch", .meaning = "sequences"},
               {.name = "query", .meaning = "new tokens per sequence"},
               {.name = "context",
                .meaning = "cached tokens per sequence before the new ones",
                .may_be_zero = true},
               {.name = "heads", .meaning = "heads on this rank"},
               {.name = "qk_head_dim",
                .meaning = "elements of a query or key: nope + rope",
                .executed = {192}},
               {.name = "v_head_dim", .meaning = "elements of a value", .executed = {128}}},
      .slots = {{.name = "q", .axes = ".., heads*qk_head_dim", .type = SlotType::kBf16},
                {.name = "keys", .axes = "keys, .."},
                {.name = "rotated", .axes = "keys, .."},
                {.name = "values", .axes = "keys, heads*v_head_dim"},
                {.name = "out",
                 .axes = ".., heads*v_head_dim",
                 .type = SlotType::kBf16,
                 .is_result = true}},
      .work = work,
      .rounds = rounds,
      .prior = {.arithmetic = Arithmetic::kAttention,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(12),
                .spread = 0.08,
                .grid = {.axes = {"batch", "query", "heads"}},
                .launch = launch,
                .launch_holds_across_ways = true},
      .executed = {DType::kBf16}};
}

}  // namespace orrery

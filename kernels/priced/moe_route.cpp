#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 5 flops per score: subtract, exponential, sum, divide, compare. Writes a float weight and an
// int32 id per choice.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double experts_total = size(dims, "experts_total");
  const double topk = size(dims, "topk");
  require(topk <= experts_total, "topk of at most experts_total");
  require(dim(dims, "experts_total") % dim(dims, "groups") == 0,
          "groups that divide experts_total");
  return {
      .flops = Flops(5 * tokens * experts_total),
      .bytes_read = Bytes(tokens * experts_total * bytes_per_element(dtype)),
      .bytes_written = Bytes(tokens * topk *
                             (bytes_per_element(DType::kFp32) + bytes_per_element(DType::kInt32)))};
}

}  // namespace

KernelSpec moe_route_spec() {
  return {.name = "moe_route",
          .summary =
              "scores, grouped top-k and weights of the routed experts; dtype is the format of the "
              "logits",
          .dims = {{.name = "tokens", .meaning = "rows of logits"},
                   {.name = "experts_total",
                    .meaning = "routed experts of the layer",
                    .must_be_whole = true},
                   {.name = "topk", .meaning = "experts chosen per token"},
                   {.name = "groups",
                    .meaning = "expert groups from which the best are kept; 1: no groups"}},
          .slots = {{.name = "logits", .axes = "tokens, experts_total"},
                    {.name = "routing",
                     .axes = "tokens, 2*topk",
                     .type = SlotType::kInt32,
                     .is_result = true}},
          .work = work,
          // Grouped top-k on H200 takes 4 us (docs/data.md). Rate as of a norm with
          // quantisation; the spread is an assumption.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.64,
                    .floor = us(4),
                    .spread = 0.3},
          .instead =
              "design fused is other engines' op, expected moe: {design: shuffling}, or "
              "{design: persistent}, the layer as one kernel"};
}

}  // namespace orrery

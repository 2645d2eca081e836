#include <algorithm>
#include <cmath>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Balanced routing: this rank computes tokens topk experts / experts_total rows, each 3 matrices of
// hidden x inter. Only experts that get a token are read: of a choice of topk distinct experts at
// random, one is missed with probability 1 - topk / experts_total, by all tokens with its power.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double inter = size(dims, "inter");
  const double topk = size(dims, "topk");
  const double experts = size(dims, "experts");
  const double experts_total = size(dims, "experts_total");
  require(topk <= experts_total, "topk of at most experts_total");
  require(experts <= experts_total, "experts of at most experts_total");
  const double rows = tokens * topk * experts / experts_total;
  const double experts_hit = experts * (1 - std::pow(1 - topk / experts_total, tokens));
  const double tokens_here = std::min(rows, tokens);
  return {.flops = Flops(2 * 3 * rows * hidden * inter),
          .bytes_read = Bytes(experts_hit * 3 * hidden * inter * weight_bytes(dtype) +
                              tokens_here * hidden * activation_bytes(dtype)),
          .bytes_written = Bytes(tokens_here * hidden * result_bytes(dtype))};
}

}  // namespace

// Rows that another rank sent have their routing with them.
KernelSpec moe_spec() {
  return {
      .name = "moe",
      .summary =
          "routed experts: both GEMMs, silu_mul between them, weighted sum; dtype of weights and "
          "activations",
      .dims = {{.name = "tokens", .meaning = "tokens routed over all ranks that share the experts"},
               {.name = "hidden", .meaning = "columns of the residual stream"},
               {.name = "inter", .meaning = "columns of one expert", .is_contraction = true},
               {.name = "topk", .meaning = "experts per token"},
               {.name = "experts", .meaning = "experts on this rank", .is_contraction = true},
               {.name = "experts_total", .meaning = "experts on all ranks"}},
      .slots =
          {{.name = "x", .axes = "rows, hidden", .type = SlotType::kOfOpOrBf16},
           {.name = "routing", .axes = ".., 2*topk", .type = SlotType::kInt32, .is_optional = true},
           {.name = "gate_up", .axes = "experts, 2*inter, hidden", .use = Use::kWeight},
           {.name = "down", .axes = "experts, hidden, inter", .use = Use::kWeight},
           {.name = "gate_up_bias",
            .axes = "experts, 2*inter",
            .type = SlotType::kBf16,
            .use = Use::kWeight,
            .is_optional = true},
           {.name = "down_bias",
            .axes = "experts, hidden",
            .type = SlotType::kBf16,
            .use = Use::kWeight,
            .is_optional = true},
           {.name = "y", .axes = "rows, hidden", .type = SlotType::kBf16, .is_result = true}},
      .work = work,
      .prior = {.arithmetic = Arithmetic::kGemm,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(12),
                .spread = 0.06,
                .grid = {.axes = {"tokens", "inter", "experts"}, .is_cut_twice = true},
                .composite = Composite::kRoutedExperts},
      .instead =
          "design fused is other engines' op, expected moe: {design: shuffling}, or "
          "{design: persistent}, the layer as one kernel"};
}

}  // namespace orrery

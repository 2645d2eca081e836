#include <cmath>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A gemm with its soft-max or sigmoid (5 flops per score). Scores are floats: experts are chosen
// by comparing them.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double experts_total = size(dims, "experts_total");
  return {.flops = Flops(tokens * experts_total * (2 * hidden + 5)),
          .bytes_read = Bytes((tokens + experts_total) * hidden * bytes_per_element(dtype)),
          .bytes_written = Bytes(tokens * experts_total * bytes_per_element(DType::kFp32))};
}

// Clusters of 16 blocks for 256 tokens each.
double blocks(DType /*dtype*/, const Dims& dims) {
  constexpr double kClusterBlocks = 16;
  constexpr double kClusterTokens = 256;
  return kClusterBlocks * std::ceil(size(dims, "tokens") / kClusterTokens);
}

}  // namespace

KernelSpec routing_scores_spec() {
  return {
      .name = "routing_scores",
      .summary =
          "scores of all experts: soft-max or sigmoid of x[tokens, hidden] w[experts_total, "
          "hidden]^T; dtype of x and w",
      .dims = {{.name = "tokens", .meaning = "rows of x"},
               {.name = "hidden", .meaning = "columns of x"},
               {.name = "experts_total",
                .meaning = "routed experts of the layer",
                .must_be_whole = true}},
      .slots = {{.name = "x", .axes = ".., hidden", .is_in_parts = true},
                {.name = "w", .axes = "experts_total, hidden", .use = Use::kWeight},
                {.name = "bias", .axes = "experts_total", .use = Use::kWeight, .is_optional = true},
                {.name = "scores",
                 .axes = "tokens, experts_total",
                 .type = SlotType::kFp32,
                 .is_result = true}},
      .work = work,
      // Measured on an H200: bound by its few columns at 4,096 tokens and more; the floor is
      // the time of one row.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.2,
                .hbm = 0.75,
                .floor = us(3.6),
                .spread = 0.2,
                .blocks = blocks},
      .executed = {DType::kBf16}};
}

}  // namespace orrery

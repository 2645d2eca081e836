#include <cmath>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Per choice an int32 token, a float weight and the int32 row; per expert an int32 count.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double experts_total = size(dims, "experts_total");
  const double topk = size(dims, "topk");
  const double experts = size(dims, "experts");
  require(topk <= experts_total, "topk of at most experts_total");
  require(experts <= experts_total, "experts of at most experts_total");
  require(dim(dims, "experts_total") % dim(dims, "groups") == 0,
          "groups that divide experts_total");
  const double id = bytes_per_element(DType::kInt32);
  const double rows = tokens * topk * experts / experts_total;
  return {.flops = Flops(tokens * experts_total),
          .bytes_read = Bytes(tokens * experts_total * bytes_per_element(dtype)),
          .bytes_written = Bytes(rows * (id + bytes_per_element(DType::kFp32)) +
                                 (tokens * topk + experts + 1) * id)};
}

// Clusters of 16 blocks for 256 tokens each.
double blocks(DType /*dtype*/, const Dims& dims) {
  constexpr double kClusterBlocks = 16;
  constexpr double kClusterTokens = 256;
  return kClusterBlocks * std::ceil(size(dims, "tokens") / kClusterTokens);
}

}  // namespace

KernelSpec index_shuffling_spec() {
  return {.name = "index_shuffling",
          .summary =
              "top-k experts of each token, and the order of tokens sorted by expert; dtype of the "
              "scores",
          .dims = {{.name = "tokens", .meaning = "rows of scores"},
                   {.name = "experts_total",
                    .meaning = "routed experts of the layer",
                    .must_be_whole = true},
                   {.name = "topk", .meaning = "experts chosen per token"},
                   {.name = "groups",
                    .meaning = "expert groups from which the best are kept; 1: no groups"},
                   {.name = "experts", .meaning = "experts on this rank"}},
          .slots =
              {{.name = "scores", .axes = "tokens, experts_total"},
               {.name = "correction_bias",
                .axes = "experts_total",
                .type = SlotType::kFp32,
                .use = Use::kWeight,
                .is_optional = true},
               // More where copies of experts are experts of their own
               // (sim/parallel/expert_placement.h).
               {.name = "counts", .axes = "experts..", .type = SlotType::kInt32, .is_result = true},
               {.name = "num_rows", .axes = "1", .type = SlotType::kInt32, .is_result = true},
               {.name = "row_token", .axes = "room", .type = SlotType::kInt32, .is_result = true},
               {.name = "row_weight", .axes = "room", .type = SlotType::kFp32, .is_result = true},
               {.name = "token_rows",
                .axes = "tokens, topk",
                .type = SlotType::kInt32,
                .is_result = true}},
          .work = work,
          // Measured on an H200: bound by the exchange between blocks at 4,096 tokens and more;
          // the floor is the time of one row.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.64,
                    .floor = us(4),
                    .spread = 0.3,
                    .grid = {.axes = {"tokens"}},
                    .blocks = blocks},
          .routed = RoutedRole::kSort,
          .leaves_sms = true,
          .executed = {DType::kFp32}};
}

}  // namespace orrery

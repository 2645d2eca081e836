#include "kernels/experts/grouped_gemm/choice.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// The rows of y are added to those of their tokens, which are read and written once.
Work work(DType dtype, const Dims& dims) {
  const double rows = size(dims, "rows");
  const double n = size(dims, "n");
  const double k = size(dims, "k");
  const double active = size(dims, "active");
  require(active <= size(dims, "groups"), "active of at most groups");
  const double tokens = size(dims, "tokens");
  const double touched = std::min(rows, tokens) * n * result_bytes(dtype);
  const double per_row = bytes_per_element(DType::kInt32) + bytes_per_element(DType::kFp32);
  return {.flops = Flops(2 * rows * n * k + 2 * rows * n),
          .bytes_read = Bytes(active * n * k * weight_bytes(dtype) +
                              rows * (k * activation_bytes(dtype) + per_row) + touched),
          .bytes_written = Bytes(touched)};
}

// 1: weights are streamed past the rows, 2: in tiles.
int way(DType /*dtype*/, std::span<const std::int64_t> sizes) {
  return is_streamed({.rows = sizes[0], .active = sizes[4]}) ? 1 : 2;
}

double padding(DType /*dtype*/, const Dims& dims) {
  return computed_over_needed({.rows = dim(dims, "rows"), .active = dim(dims, "active")});
}

}  // namespace

KernelSpec grouped_gemm_scatter_spec() {
  return {.name = "grouped_gemm_scatter",
          .summary =
              "grouped_gemm whose rows are weighed and added to out[tokens, n] in place; dtype of "
              "x and w",
          .dims = {{.name = "rows", .meaning = "rows of x of all groups", .may_be_zero = true},
                   {.name = "n", .meaning = "rows of each w: output columns"},
                   {.name = "k", .meaning = "input columns", .is_contraction = true},
                   {.name = "groups", .meaning = "experts on this rank, each with its w"},
                   {.name = "active",
                    .meaning = "groups with at least one row, whose w is read",
                    .may_be_zero = true},
                   {.name = "tokens", .meaning = "rows of out"}},
          .slots =
              {{.name = "x", .axes = "room, k"},
               {.name = "w", .axes = "groups, n, k", .use = Use::kWeight},
               {.name = "counts", .axes = "groups", .type = SlotType::kInt32, .use = Use::kCounts},
               {.name = "row_token", .axes = "room", .type = SlotType::kInt32},
               {.name = "row_weight", .axes = "room", .type = SlotType::kFp32, .is_optional = true},
               {.name = "base", .axes = "tokens, n", .type = SlotType::kBf16},
               {.name = "out",
                .axes = "tokens, n",
                .type = SlotType::kBf16,
                .is_result = true,
                .may_alias = "base"}},
          .work = work,
          .way = way,
          .rounds = one_round,
          // As grouped_gemm.
          .prior = {.arithmetic = Arithmetic::kGemm,
                    .flops = 0.75,
                    .hbm = 0.93,
                    .floor = us(3),
                    .spread = 0.08,
                    .grid = {.axes = {"rows", "active"}, .ignored = "tokens", .is_scattered = true},
                    .padding = padding},
          .routed = RoutedRole::kScatter,
          .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery

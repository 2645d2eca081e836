#include <algorithm>

#include "kernels/experts/grouped_gemm/choice.h"
#include "kernels/experts/grouped_gemm/launch_work.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// As grouped_gemm, whose rows of x are read where tokens have them, each token's once; a row's
// int32 token and float weight once.
Work work(DType dtype, const Dims& dims) {
  const double rows = size(dims, "rows");
  const double n = size(dims, "n");
  const double k = size(dims, "k");
  const double active = size(dims, "active");
  require(active <= size(dims, "groups"), "active of at most groups");
  const double read = std::min(rows, size(dims, "tokens"));
  const double per_row = bytes_per_element(DType::kInt32) + bytes_per_element(DType::kFp32);
  return {.flops = Flops(2 * rows * n * k),
          .bytes_read = Bytes(active * n * k * weight_bytes(dtype) +
                              read * k * activation_bytes(dtype) + rows * per_row),
          .bytes_written = Bytes(rows * n * result_bytes(dtype))};
}

GroupedGemmLoad load_of(const Dims& dims) {
  return {.rows = dim(dims, "rows"), .active = dim(dims, "active")};
}

// Always in tiles.
LaunchWork launch(DType dtype, const Dims& dims, int num_sms) {
  return tiled_launch({.dtype = dtype,
                       .max_rows = dim(dims, "rows"),
                       .n = dim(dims, "n"),
                       .k = dim(dims, "k"),
                       .groups = dim(dims, "groups")},
                      load_of(dims), num_sms);
}

double padding(DType /*dtype*/, const Dims& dims) { return computed_over_needed(load_of(dims)); }

// The rows of grouped_gemm, where it goes in the same tiles and has none of its own: as if
// gathering were free.
KernelOp same_work(const KernelOp& op) {
  if (is_streamed(load_of(op.dims))) return op;
  KernelOp other{.kernel = "grouped_gemm", .dtype = op.dtype, .dims = {}};
  for (const char* const name : {"rows", "n", "k", "groups", "active"}) {
    other.dims.push_back({name, dim(op.dims, name), ""});
  }
  return other;
}

}  // namespace

KernelSpec grouped_gemm_gather_spec() {
  return {.name = "grouped_gemm_gather",
          .summary =
              "grouped_gemm on rows of x[tokens, k] that lie with their tokens, weighed where the "
              "model weighs inputs; dtype of x and w",
          .dims = {{.name = "rows", .meaning = "rows of y of all groups", .may_be_zero = true},
                   {.name = "n", .meaning = "rows of each w: output columns"},
                   {.name = "k", .meaning = "input columns", .is_contraction = true},
                   {.name = "groups", .meaning = "experts on this rank, each with its w"},
                   {.name = "active",
                    .meaning = "groups with at least one row, whose w is read",
                    .may_be_zero = true},
                   {.name = "tokens", .meaning = "rows of x"}},
          .slots =
              {{.name = "x", .axes = "tokens, k"},
               {.name = "w", .axes = "groups, n, k", .use = Use::kWeight},
               {.name = "counts", .axes = "groups", .type = SlotType::kInt32, .use = Use::kCounts},
               {.name = "row_token", .axes = "room", .type = SlotType::kInt32},
               {.name = "row_weight", .axes = "room", .type = SlotType::kFp32, .is_optional = true},
               {.name = "y", .axes = "room, n", .type = SlotType::kResult, .is_result = true}},
          .work = work,
          .rounds = one_round,
          // As grouped_gemm, of which it has the tiles; the floor is that of a launch of them.
          .prior = {.arithmetic = Arithmetic::kGemm,
                    .flops = 0.75,
                    .hbm = 0.93,
                    .floor = us(5.5),
                    .spread = 0.08,
                    .grid = {.axes = {"rows", "active"}, .ignored = "tokens", .is_scattered = true},
                    .padding = padding,
                    .launch = launch,
                    .same_work = same_work},
          .routed = RoutedRole::kGather,
          .leaves_sms = true,
          .executed = {DType::kBf16}};
}

}  // namespace orrery

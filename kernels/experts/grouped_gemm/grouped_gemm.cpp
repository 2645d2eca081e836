#include "kernels/experts/grouped_gemm/launch_work.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A gemm for each group's rows with its own w. What no row needs is not read.
Work work(DType dtype, const Dims& dims) {
  const double rows = size(dims, "rows");
  const double n = size(dims, "n");
  const double k = size(dims, "k");
  const double active = size(dims, "active");
  require(active <= size(dims, "groups"), "active of at most groups");
  return {.flops = Flops(2 * rows * n * k),
          .bytes_read =
              Bytes(active * n * k * weight_bytes(dtype) + rows * k * activation_bytes(dtype)),
          .bytes_written = Bytes(rows * n * result_bytes(dtype))};
}

// 1: weights are streamed past the rows, 2: in tiles.
int way(DType /*dtype*/, std::span<const std::int64_t> sizes) {
  return is_streamed({.rows = sizes[0], .active = sizes[4]}) ? 1 : 2;
}

LaunchWork launch(DType dtype, const Dims& dims, int num_sms) {
  return grouped_gemm_launch({.dtype = dtype,
                              .max_rows = dim(dims, "rows"),
                              .n = dim(dims, "n"),
                              .k = dim(dims, "k"),
                              .groups = dim(dims, "groups")},
                             {.rows = dim(dims, "rows"), .active = dim(dims, "active")}, num_sms);
}

double padding(DType /*dtype*/, const Dims& dims) {
  return computed_over_needed({.rows = dim(dims, "rows"), .active = dim(dims, "active")});
}

}  // namespace

KernelSpec grouped_gemm_spec() {
  return {
      .name = "grouped_gemm",
      .summary =
          "y[rows, n] = x[rows, k] w[group of the row][n, k]^T, rows sorted by group, their "
          "counts on the device; dtype of x and w",
      .dims = {{.name = "rows", .meaning = "rows of x of all groups", .may_be_zero = true},
               {.name = "n", .meaning = "rows of each w: output columns"},
               {.name = "k", .meaning = "input columns", .is_contraction = true},
               {.name = "groups", .meaning = "experts on this rank, each with its w"},
               {.name = "active",
                .meaning = "groups with at least one row, whose w is read",
                .may_be_zero = true}},
      .slots = {{.name = "x", .axes = "room, k"},
                {.name = "w", .axes = "groups, n, k", .use = Use::kWeight},
                {.name = "counts", .axes = "groups", .type = SlotType::kInt32, .use = Use::kCounts},
                {.name = "y", .axes = "room.., n", .type = SlotType::kResult, .is_result = true}},
      .work = work,
      .way = way,
      .rounds = one_round,
      // Few rows stream weights at 4.1 to 4.5 of 4.8 TB/s on an H200; the floor is the time
      // of one row.
      .prior = {.arithmetic = Arithmetic::kGemm,
                .flops = 0.75,
                .hbm = 0.93,
                .floor = us(3),
                .spread = 0.08,
                .grid = {.axes = {"rows", "active"}, .is_scattered = true},
                .padding = padding,
                .launch = launch,
                .launch_holds_across_ways = true},
      .leaves_sms = true,
      .executed = {DType::kBf16, DType::kFp16, DType::kFp8}};
}

}  // namespace orrery

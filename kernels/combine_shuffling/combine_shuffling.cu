#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/combine_shuffling/combine_shuffling.h"
#include "kernels/cuda/counted_rows.cuh"
#include "kernels/cuda/prefix.cuh"

namespace orrery {
namespace {

constexpr int kVectors = 4;  // of a thread
constexpr int kMostRanks = 64;
constexpr int kMostSlices = 1024;

// Where the slices (the rows of one expert on one rank) begin, in shared memory.
struct Slices {
  const std::int32_t* by_expert;  // [slices + 1], slice expert * ranks + rank, expert-major
  const std::int32_t* by_rank;    // [slices + 1], slice rank * groups + expert, without gaps
  const std::int32_t* skipped;    // [ranks], rows of experts ahead of the first
};

// All threads of a block of whole warps. `takes_slice`: a rank has rows of experts ahead of the
// first.
__device__ Slices read_slices(const ShuffledCounts& from, bool takes_slice) {
  __shared__ std::int32_t by_expert[kMostSlices + 1];
  __shared__ std::int32_t by_rank[kMostSlices + 1];
  __shared__ std::int32_t skipped[kMostRanks];
  const auto ranks = static_cast<int>(from.ranks);
  const auto groups = static_cast<int>(from.groups);
  const auto experts = static_cast<int>(from.experts);
  const auto first = static_cast<int>(from.first);
  const int count = ranks * groups;
  for (int i = thread_of_block(); i < count; i += threads_of_block()) {
    const int rank = i / groups;
    const int group = i % groups;
    const std::int32_t rows = max(from.counts[rank * experts + first + group], 0);
    by_rank[i] = rows;
    by_expert[group * ranks + rank] = rows;
  }
  const int warp = thread_of_block() / kWarpSize;
  const int lane = thread_of_block() % kWarpSize;
  const int warps = threads_of_block() / kWarpSize;
  for (int rank = warp; rank < ranks; rank += warps) {
    std::int32_t sum = 0;
    for (int expert = lane; takes_slice && expert < first; expert += kWarpSize) {
      sum += max(from.counts[rank * experts + expert], 0);
    }
    sum = __reduce_add_sync(0xFFFFFFFFU, sum);
    if (lane == 0) skipped[rank] = sum;
  }
  __syncthreads();
  if (warp == 0) warp_prefix(by_expert, count);
  if (warp == min(1, warps - 1)) warp_prefix(by_rank, count);
  __syncthreads();
  return {by_expert, by_rank, skipped};
}

// A row on both sides, from the side that is read to that which is written; -1: not there.
struct MovedRow {
  std::int64_t from;
  std::int64_t to;
};

// Rows in the order of experts, copied as vectors, with the scale of each.
template <bool kCombines>
struct MovedRows {
  struct Raw {
    uint4 x;
  };
  ShuffledCounts counts;
  ShuffledRows rows;
  std::int64_t columns;  // of 2 bytes
  std::int32_t* group_counts;
  std::int32_t* total;
  Slices slices;

  __device__ int num_slices() const { return static_cast<int>(counts.ranks * counts.groups); }
  __device__ int num_rows() const { return slices.by_expert[num_slices()]; }
  __device__ void begin() {
    slices = read_slices(counts, kCombines && counts.bound > 0);
    if (!kCombines || blockIdx.x > 0) return;
    const auto most = static_cast<std::int32_t>(rows.to_rows);
    const auto ranks = static_cast<int>(counts.ranks);
    for (int group = thread_of_block(); group < counts.groups; group += threads_of_block()) {
      group_counts[group] = min(slices.by_expert[(group + 1) * ranks], most) -
                            min(slices.by_expert[group * ranks], most);
    }
    if (thread_of_block() == 0) *total = min(num_rows(), most);
  }
  __device__ MovedRow key(std::int64_t row) const {
    if (row >= num_rows()) return {-1, -1};
    const auto ranks = static_cast<int>(counts.ranks);
    const auto groups = static_cast<int>(counts.groups);
    const int slice = group_of(slices.by_expert, num_slices(), row);
    const int rank = slice % ranks;
    std::int64_t other =
        slices.by_rank[rank * groups + slice / ranks] + row - slices.by_expert[slice];
    if (counts.bound > 0) {
      other += slices.skipped[rank] - slices.by_rank[rank * groups];
      if (other >= counts.bound) return {-1, -1};
      other += rank * counts.bound;
    }
    if (other >= (kCombines ? rows.from_rows : rows.to_rows)) return {-1, -1};
    return kCombines ? MovedRow{other, row} : MovedRow{row, other};
  }
  __device__ std::int64_t target(const MovedRow& row) const { return row.to; }
  __device__ Raw load(std::int64_t, std::int64_t column, const MovedRow& row) const {
    if (row.from < 0) return {};
    if (column == 0 && rows.from_scales != nullptr) {
      rows.to_scales[row.to] = rows.from_scales[row.from];
    }
    return {load_once(static_cast<const bf16*>(rows.from) + row.from * columns + column)};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const { return raw.x; }
};

// Any width and alignment, byte by byte; a block for each row.
template <bool kCombines>
__global__ void __launch_bounds__(kMostRowThreads) bytes_kernel(MovedRows<kCombines> source) {
  begin_dependent();
  source.begin();
  const ShuffledRows& rows = source.rows;
  const auto most = static_cast<int>(kCombines ? rows.to_rows : rows.from_rows);
  const int count = min(source.num_rows(), most);
  for (auto row = static_cast<int>(blockIdx.x); row < count; row += static_cast<int>(gridDim.x)) {
    const MovedRow moved = source.key(row);
    if (moved.from < 0) continue;
    const char* const from = static_cast<const char*>(rows.from) + moved.from * rows.row_bytes;
    char* const to = static_cast<char*>(rows.to) + moved.to * rows.row_bytes;
    for (std::size_t i = threadIdx.x; i < rows.row_bytes; i += blockDim.x) to[i] = from[i];
    if (threadIdx.x == 0 && rows.from_scales != nullptr) {
      rows.to_scales[moved.to] = rows.from_scales[moved.from];
    }
  }
}

void require(bool holds, const char* kernel, const std::string& what) {
  if (!holds) throw std::invalid_argument(std::string(kernel) + " takes " + what);
}

template <bool kCombines>
void launch(const cuda::Stream& stream, const ShuffledCounts& counts, const ShuffledRows& rows,
            std::int32_t* group_counts, std::int32_t* num_rows) {
  const char* const kernel = kCombines ? "combine_shuffling" : "split_shuffling";
  const std::int64_t slices = counts.ranks * counts.groups;
  require(counts.ranks >= 1 && counts.groups >= 1 && counts.ranks <= kMostRanks &&
              slices <= kMostSlices,
          kernel,
          "up to " + std::to_string(kMostRanks) + " ranks and " + std::to_string(kMostSlices) +
              " slices of ranks and experts, not " + std::to_string(counts.ranks) + " times " +
              std::to_string(counts.groups));
  require(counts.first >= 0 && counts.first + counts.groups <= counts.experts, kernel,
          "experts of those counted, not " + std::to_string(counts.groups) + " from " +
              std::to_string(counts.first) + " of " + std::to_string(counts.experts));
  const auto columns = static_cast<std::int64_t>(rows.row_bytes / sizeof(bf16));
  const MovedRows<kCombines> source{counts, rows, columns, group_counts, num_rows, {}};
  const std::int64_t most = kCombines ? rows.to_rows : rows.from_rows;
  const auto* const from = static_cast<const bf16*>(rows.from);
  auto* const to = static_cast<bf16*>(rows.to);
  constexpr std::int64_t kMostColumns = 32768;  // that a block holds
  if (rows.row_bytes % sizeof(uint4) == 0 && vector_aligned(from, to) && columns <= kMostColumns &&
      most > 0) {
    return launch_counted_rows(stream, source, Bf16Rows{to, columns}, {.most = most}, kVectors,
                               true);
  }
  constexpr int kThreads = 256;
  const std::int64_t blocks =
      std::clamp(most, std::int64_t{1}, cuda::resident_blocks(bytes_kernel<kCombines>, kThreads));
  cuda::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .programmatic = true},
      bytes_kernel<kCombines>, source);
}

}  // namespace

void combine_shuffling(const cuda::Stream& stream, const ShuffledCounts& counts,
                       const ShuffledRows& rows, std::int32_t* group_counts,
                       std::int32_t* num_rows) {
  launch<true>(stream, counts, rows, group_counts, num_rows);
}

void split_shuffling(const cuda::Stream& stream, const ShuffledCounts& counts,
                     const ShuffledRows& rows) {
  launch<false>(stream, counts, rows, nullptr, nullptr);
}

}  // namespace orrery

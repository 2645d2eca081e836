#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/prefix.cuh"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/experts/combine_shuffling/combine_shuffling.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMostRanks = 64;
constexpr int kMostSlices = 1024;

// Where the slices (the rows of one expert on one rank) begin, in shared memory.
struct Slices {
  const std::int32_t* by_expert;  // [slices + 1], slice expert * ranks + rank, expert-major
  const std::int32_t* by_rank;    // [slices + 1], slice rank * groups + expert, without gaps
  const std::int32_t* skipped;    // [ranks], rows of experts ahead of the first
};

// All threads of a block. `takes_slice`: a rank has rows of experts ahead of the
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
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < count; i += kThreads) {
    const int rank = i / groups;
    const int group = i % groups;
    const std::int32_t rows = max(from.counts[rank * experts + first + group], 0);
    by_rank[i] = rows;
    by_expert[group * ranks + rank] = rows;
  }
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  for (int rank = warp; rank < ranks; rank += kWarps) {
    std::int32_t sum = 0;
    for (int expert = lane; takes_slice && expert < first; expert += kWarpSize) {
      sum += max(from.counts[rank * experts + expert], 0);
    }
    sum = __reduce_add_sync(0xFFFFFFFFU, sum);
    if (lane == 0) skipped[rank] = sum;
  }
  __syncthreads();
  if (warp == 0) warp_prefix(by_expert, count);
  if (warp == 1) warp_prefix(by_rank, count);
  __syncthreads();
  return {by_expert, by_rank, skipped};
}

// Rows of a slice on the rank-major side, where they begin and how many there is room for.
struct Stretch {
  int begin;
  int room;
};
__device__ Stretch rank_major(const ShuffledCounts& from, const Slices& slices, int slice,
                              int side_rows) {
  const auto ranks = static_cast<int>(from.ranks);
  const auto groups = static_cast<int>(from.groups);
  const auto bound = static_cast<int>(from.bound);
  const int rank = slice % ranks;
  const int begin = slices.by_rank[rank * groups + slice / ranks];
  if (bound == 0) return {begin, side_rows - begin};
  const int inside = slices.skipped[rank] + begin - slices.by_rank[rank * groups];
  return {rank * bound + inside, bound - inside};
}

// Many loads ahead of the first store.
template <typename Unit>
__device__ void copy(const Unit* from, Unit* to, int count) {
  constexpr int kAhead = 4;
  for (int at = static_cast<int>(threadIdx.x); at < count; at += kThreads * kAhead) {
    Unit units[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at + i * kThreads < count) units[i] = from[at + i * kThreads];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (at + i * kThreads < count) to[at + i * kThreads] = units[i];
    }
  }
}

// Each block copies as many rows as any other, of those that lie together on the expert-major side.
template <typename Unit, bool kCombines>
__global__ void __launch_bounds__(kThreads)
    shuffle_kernel(ShuffledCounts counts, ShuffledRows rows, std::int32_t* group_counts,
                   std::int32_t* num_rows) {
  begin_dependent();
  const Slices slices = read_slices(counts, kCombines && counts.bound > 0);
  const auto ranks = static_cast<int>(counts.ranks);
  const int count = static_cast<int>(counts.groups) * ranks;
  const auto side = static_cast<int>(kCombines ? rows.to_rows : rows.from_rows);
  const auto other_side = static_cast<int>(kCombines ? rows.from_rows : rows.to_rows);
  const int total = min(side, slices.by_expert[count]);
  if (kCombines && blockIdx.x == 0) {
    for (auto group = static_cast<int>(threadIdx.x); group < counts.groups; group += kThreads) {
      group_counts[group] = min(slices.by_expert[(group + 1) * ranks], side) -
                            min(slices.by_expert[group * ranks], side);
    }
    if (threadIdx.x == 0) *num_rows = total;
  }
  const int share = (total + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  const int first = share * static_cast<int>(blockIdx.x);
  const int last = min(first + share, total);
  if (first >= last) return;
  const auto units = static_cast<int>(rows.row_bytes / sizeof(Unit));
  int row = first;
  for (int slice = group_of(slices.by_expert, count, row); row < last; ++slice) {
    const int slice_begin = slices.by_expert[slice];
    const int slice_end = min(slices.by_expert[slice + 1], last);
    if (slice_end <= row) continue;  // no rows
    const Stretch other = rank_major(counts, slices, slice, other_side);
    const int copied = min(slice_end, slice_begin + other.room) - row;
    const std::int64_t moved = other.begin + row - slice_begin;
    const std::int64_t from = kCombines ? moved : row;
    const std::int64_t to = kCombines ? row : moved;
    copy(static_cast<const Unit*>(rows.from) + from * units,
         static_cast<Unit*>(rows.to) + to * units, copied * units);
    if (rows.from_scales != nullptr) copy(rows.from_scales + from, rows.to_scales + to, copied);
    row = slice_end;
  }
}

// Blocks for room for `rows`: as many as are resident, or more, up to counted_blocks(), where each
// has this many bytes to copy. A block reads all counts before it copies: of 6,240 rows of 4 KiB
// with room for twice as many, 6,336 blocks take 35 us on an H200 and resident ones 17.
std::int64_t blocks_for(std::int64_t rows, std::size_t row_bytes, std::int64_t resident) {
  constexpr std::int64_t kBlockBytes = 32 * 1024;
  const std::int64_t most = std::max(cuda::counted_blocks(rows, resident), std::int64_t{1});
  const std::int64_t filled = rows * static_cast<std::int64_t>(row_bytes) / kBlockBytes;
  return std::min(most, std::max(resident, filled));
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
  const std::int64_t side = kCombines ? rows.to_rows : rows.from_rows;
  if (side == 0 && !kCombines) return;
  const auto addresses = reinterpret_cast<std::uintptr_t>(rows.from) |
                         reinterpret_cast<std::uintptr_t>(rows.to) | rows.row_bytes;
  const auto shuffle = addresses % sizeof(uint4) == 0 ? shuffle_kernel<uint4, kCombines>
                                                      : shuffle_kernel<char, kCombines>;
  const std::int64_t blocks =
      blocks_for(side, rows.row_bytes, cuda::resident_blocks(shuffle, kThreads));
  cuda::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads), .programmatic = true},
      shuffle, counts, rows, group_counts, num_rows);
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

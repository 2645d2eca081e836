#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/combine_shuffling/combine_shuffling.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefix.cuh"
#include "kernels/cuda/programmatic.cuh"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;

// Where the slices (the rows of one expert on one rank) begin, in shared memory.
struct Slices {
  std::int32_t* by_expert;  // [slices + 1], slice expert * ranks + rank, expert-major
  std::int32_t* by_rank;    // [slices + 1], slice rank * groups + expert, rank-major without gaps
  std::int32_t* skipped;    // [ranks], rows of experts ahead of the first
};

std::size_t slices_bytes(const ShuffledCounts& counts) {
  return static_cast<std::size_t>(2 * (counts.ranks * counts.groups + 1) + counts.ranks) *
         sizeof(std::int32_t);
}

__device__ Slices read_slices(const ShuffledCounts& from, bool takes_slice) {
  extern __shared__ std::int32_t shared[];
  const auto ranks = static_cast<int>(from.ranks);
  const auto groups = static_cast<int>(from.groups);
  const int count = ranks * groups;
  const Slices slices{shared, shared + count + 1, shared + 2 * (count + 1)};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int rank = i / groups;
    const int group = i % groups;
    const std::int32_t rows = max(from.counts[rank * from.experts + from.first + group], 0);
    slices.by_rank[i] = rows;
    slices.by_expert[group * ranks + rank] = rows;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int rank = warp; rank < ranks; rank += kWarps) {
    std::int32_t sum = 0;
    for (std::int64_t expert = lane; takes_slice && expert < from.first; expert += kWarpSize) {
      sum += max(from.counts[rank * from.experts + expert], 0);
    }
    sum = __reduce_add_sync(0xFFFFFFFFU, sum);
    if (lane == 0) slices.skipped[rank] = sum;
  }
  __syncthreads();
  if (warp == 0) warp_prefix(slices.by_expert, count);
  if (warp == 1) warp_prefix(slices.by_rank, count);
  __syncthreads();
  return slices;
}

// The rows of a slice on the rank-major side.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t room = 0;  // to where the side, or the rank's part of it, ends
};
__device__ Stretch rank_major(const ShuffledCounts& from, const Slices& slices, int slice,
                              std::int64_t rows) {
  const auto ranks = static_cast<int>(from.ranks);
  const auto groups = static_cast<int>(from.groups);
  const int rank = slice % ranks;
  const std::int64_t begin = slices.by_rank[rank * groups + slice / ranks];
  if (from.bound == 0) return {begin, rows - begin};
  const std::int64_t inside = slices.skipped[rank] + begin - slices.by_rank[rank * groups];
  return {rank * from.bound + inside, from.bound - inside};
}

// Many loads ahead of the first store.
template <typename Unit>
__device__ void copy(const Unit* from, Unit* to, std::int64_t count) {
  constexpr int kAhead = 4;
  for (std::int64_t at = threadIdx.x; at < count; at += kThreads * kAhead) {
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

// Each block copies an equal share of the units of the expert-major side, slice by slice.
template <typename Unit, bool kCombines>
__global__ void __launch_bounds__(kThreads)
    shuffle_kernel(ShuffledCounts counts, ShuffledRows rows, std::int32_t* group_counts,
                   std::int32_t* num_rows) {
  begin_dependent();
  const Slices slices = read_slices(counts, kCombines && counts.bound > 0);
  const auto ranks = static_cast<int>(counts.ranks);
  const auto count = static_cast<int>(counts.groups) * ranks;
  const std::int64_t side = kCombines ? rows.to_rows : rows.from_rows;
  const std::int64_t total = min(side, static_cast<std::int64_t>(slices.by_expert[count]));
  if constexpr (kCombines) {
    if (blockIdx.x == 0) {
      for (int group = static_cast<int>(threadIdx.x); group < counts.groups; group += kThreads) {
        const auto most = static_cast<std::int32_t>(side);
        group_counts[group] = min(slices.by_expert[(group + 1) * ranks], most) -
                              min(slices.by_expert[group * ranks], most);
      }
      if (threadIdx.x == 0) *num_rows = static_cast<std::int32_t>(total);
    }
  }
  const auto units = static_cast<std::int64_t>(rows.row_bytes / sizeof(Unit));
  std::int64_t at = total * units * blockIdx.x / gridDim.x;
  const std::int64_t end = total * units * (blockIdx.x + 1) / gridDim.x;
  if (at == end) return;
  const auto* const from = static_cast<const Unit*>(rows.from);
  auto* const to = static_cast<Unit*>(rows.to);
  for (int slice = group_of(slices.by_expert, count, at / units); at < end; ++slice) {
    const std::int64_t begin = slices.by_expert[slice];
    const std::int64_t slice_end = min(end, slices.by_expert[slice + 1] * units);
    if (slice_end <= at) continue;  // no rows
    const Stretch other =
        rank_major(counts, slices, slice, kCombines ? rows.from_rows : rows.to_rows);
    const std::int64_t copied = min(slice_end, (begin + other.room) * units) - at;
    const std::int64_t moved = (other.begin - begin) * units;
    copy(from + at + (kCombines ? moved : 0), to + at + (kCombines ? 0 : moved), copied);
    if (rows.from_scales != nullptr) {  // of the rows that begin in this share
      const std::int64_t row = (at + units - 1) / units;
      const std::int64_t shift = other.begin - begin;
      copy(rows.from_scales + row + (kCombines ? shift : 0),
           rows.to_scales + row + (kCombines ? 0 : shift), (at + copied + units - 1) / units - row);
    }
    at = slice_end;
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
  require(counts.ranks >= 1 && counts.groups >= 1 && slices <= kMostSlices, kernel,
          "up to " + std::to_string(kMostSlices) + " slices of ranks and experts, not " +
              std::to_string(counts.ranks) + " times " + std::to_string(counts.groups));
  require(counts.first >= 0 && counts.first + counts.groups <= counts.experts, kernel,
          "experts of those counted, not " + std::to_string(counts.groups) + " from " +
              std::to_string(counts.first) + " of " + std::to_string(counts.experts));
  const std::int64_t side = kCombines ? rows.to_rows : rows.from_rows;
  if (rows.row_bytes == 0 || (side == 0 && !kCombines)) return;
  const auto addresses = reinterpret_cast<std::uintptr_t>(rows.from) |
                         reinterpret_cast<std::uintptr_t>(rows.to) | rows.row_bytes;
  const bool by_vectors = addresses % sizeof(uint4) == 0;
  constexpr std::int64_t kLeastBytes = kThreads * sizeof(uint4);
  const cudaDeviceProp& device = cuda::device_properties();
  const std::int64_t most = static_cast<std::int64_t>(device.multiProcessorCount) *
                            (device.maxThreadsPerMultiProcessor / kThreads);
  const std::int64_t blocks = std::clamp(
      side * static_cast<std::int64_t>(rows.row_bytes) / kLeastBytes, std::int64_t{1}, most);
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .shared_bytes = slices_bytes(counts),
                .programmatic = true},
               by_vectors ? shuffle_kernel<uint4, kCombines> : shuffle_kernel<char, kCombines>,
               counts, rows, group_counts, num_rows);
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

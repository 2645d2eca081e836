#include <algorithm>

#include "kernels/cuda/map_kernel.cuh"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/prefix.cuh"
#include "kernels/experts/scatter_add/scatter_add.h"

namespace orrery {
namespace {

// A token's sum over up to kTopk rows, all loaded ahead of the first addition.
template <int kTopk, bool kGroups>
struct SummedRows {
  struct Raw {
    uint4 base;
    uint4 y[kTopk];
    float weight[kTopk];
  };
  TokenRowSums from;
  std::int64_t columns;
  const std::int32_t* starts;  // shared memory

  __device__ void begin() {
    if constexpr (kGroups) {
      starts = group_starts(from.counts, static_cast<int>(from.groups),
                            static_cast<int>(from.num_counts / from.groups));
    }
  }
  // The row of y that is `row` of all; -1 where there is none.
  __device__ std::int64_t place(std::int64_t row) const {
    if (row < 0 || row >= from.rows) return -1;
    if constexpr (kGroups) {
      const auto groups = static_cast<int>(from.groups);
      if (row >= starts[groups]) return -1;
      const int group = group_of(starts, groups, row);
      const std::int64_t inside = row - starts[group];
      return inside < from.bound ? group * from.bound + inside : -1;
    }
    return row;
  }
  __device__ Raw load(std::int64_t token, std::int64_t column) const {
    Raw raw{};
    if (from.base != nullptr) raw.base = load_once(from.base + token * columns + column);
    std::int64_t rows[kTopk];
#pragma unroll
    for (int k = 0; k < kTopk; ++k) {
      rows[k] = k < from.topk ? from.token_rows[token * from.topk + k] : -1;
    }
#pragma unroll
    for (int k = 0; k < kTopk; ++k) {
      const std::int64_t at = place(rows[k]);
      if (at < 0) continue;
      raw.y[k] = load_once(from.y + at * columns + column);
      raw.weight[k] = from.row_weight == nullptr ? 1.0f : from.row_weight[rows[k]];
    }
    return raw;
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const {
    float sum[kVectorSize];
    unpack(raw.base, sum);
#pragma unroll
    for (int k = 0; k < kTopk; ++k) {
      float values[kVectorSize];
      unpack(raw.y[k], values);
#pragma unroll
      for (int i = 0; i < kVectorSize; ++i) sum[i] = fmaf(raw.weight[k], values[i], sum[i]);
    }
    return pack(sum);
  }
  __device__ float first(std::int64_t token, std::int64_t column) const {
    float sum = from.base == nullptr ? 0.0f : __bfloat162float(from.base[token * columns + column]);
    for (int k = 0; k < from.topk; ++k) {
      const std::int64_t row = from.token_rows[token * from.topk + k];
      const std::int64_t at = place(row);
      if (at < 0) continue;
      const float weight = from.row_weight == nullptr ? 1.0f : from.row_weight[row];
      sum = fmaf(weight, __bfloat162float(from.y[at * columns + column]), sum);
    }
    return sum;
  }
};

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("scatter_add takes " + what);
}

constexpr int kMostThreads = 256;

// A vector (or an element) of a token for each thread; each block takes a stretch of columns of as
// many tokens as any other, having read the counts once.
template <int kTopk, bool kByVectors>
__global__ void __launch_bounds__(kMostThreads)
    groups_kernel(SummedRows<kTopk, true> source, Bf16Rows sink, int stretches) {
  begin_dependent();
  source.begin();
  const auto block = static_cast<int>(blockIdx.x);
  const auto at = static_cast<int>(block % stretches * blockDim.x + threadIdx.x);
  const std::int64_t column = static_cast<std::int64_t>(at) * (kByVectors ? kVectorSize : 1);
  if (column >= source.columns) return;
  const int step = static_cast<int>(gridDim.x) / stretches;
  for (int token = block / stretches; token < source.from.tokens; token += step) {
    if constexpr (kByVectors) {
      sink.put(token, column, source.keep(token, column, source.load(token, column)));
    } else {
      sink.put(token, column, source.first(token, column));
    }
  }
}

template <int kTopk, bool kByVectors>
void launch_groups(const cuda::Stream& stream, const TokenRowSums& sums, const Bf16Rows& sink) {
  constexpr std::int64_t kRounds = 4;  // of resident blocks, which end at different times
  const auto kernel = groups_kernel<kTopk, kByVectors>;
  const std::int64_t units = kByVectors ? sums.hidden / kVectorSize : sums.hidden;
  const std::int64_t stretches = (units + kMostThreads - 1) / kMostThreads;
  const std::int64_t threads =
      ((units + stretches - 1) / stretches + kWarpSize - 1) / kWarpSize * kWarpSize;
  const std::int64_t resident = cuda::resident_blocks(kernel, static_cast<int>(threads));
  const std::int64_t each =
      std::clamp(kRounds * resident / stretches, std::int64_t{1}, sums.tokens);
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(stretches * each)),
                .block = dim3(static_cast<unsigned>(threads)),
                .programmatic = true},
               kernel, SummedRows<kTopk, true>{sums, sums.hidden, nullptr}, sink,
               static_cast<int>(stretches));
}

template <int kTopk>
void launch(const cuda::Stream& stream, const TokenRowSums& sums, bf16* out) {
  const Bf16Rows sink{out, sums.hidden};
  const bool aligned = vector_aligned(sums.y, sums.base, out);
  if (sums.tokens == 0 || sums.hidden == 0) return;
  if (sums.groups == 0) {
    return launch_map(stream, SummedRows<kTopk, false>{sums, sums.hidden, nullptr}, sink,
                      sums.tokens, aligned);
  }
  if (aligned && sums.hidden % kVectorSize == 0) {
    return launch_groups<kTopk, true>(stream, sums, sink);
  }
  launch_groups<kTopk, false>(stream, sums, sink);
}

}  // namespace

void scatter_add(const cuda::Stream& stream, const TokenRowSums& sums, bf16* out) {
  require(sums.topk >= 1 && sums.topk <= kMostTopk,
          "a topk of 1 to " + std::to_string(kMostTopk) + ", not " + std::to_string(sums.topk));
  require(sums.groups >= 0 && sums.groups <= kMostGroups,
          "up to " + std::to_string(kMostGroups) + " groups, not " + std::to_string(sums.groups));
  require(sums.groups == 0 || sums.num_counts % sums.groups == 0,
          "counts of whole groups, not " + std::to_string(sums.num_counts) + " for " +
              std::to_string(sums.groups));
  if (sums.topk == 1) return launch<1>(stream, sums, out);
  if (sums.topk == 2) return launch<2>(stream, sums, out);
  if (sums.topk <= 4) return launch<4>(stream, sums, out);
  launch<kMostTopk>(stream, sums, out);
}

}  // namespace orrery

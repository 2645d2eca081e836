#pragma once

// Kernels over rows whose number the device knows: the grid is sized to the machine, and each block
// loops to the count, so that rows past it cost nothing and are neither read nor written. Made of
// the sources and sinks of rows.cuh. What a source may have besides:
//
//   begin()             which all threads of the block call once, ahead of its first row
//   key(row)            what it knows of a row ahead of its elements: its load() takes it. Asked
//                       before the count is there, of any row that there is room for
//   factor(key)         what a sink that needs the peak multiplies the row by

#include "kernels/cuda/launch.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_shape.h"
#include "kernels/cuda/rows.cuh"

namespace orrery {

struct RowCount {
  std::int64_t most = 0;                    // rows that there is room for, below 2^31
  const std::int32_t* on_device = nullptr;  // [1], how many there are; null: `most`

  __device__ int rows() const {
    const auto room = static_cast<int>(most);
    return on_device == nullptr ? room : min(room, *on_device);
  }
};

namespace {

template <typename Source>
__device__ void begin_source(Source& source) {
  if constexpr (requires { source.begin(); }) source.begin();
}

template <typename Source>
concept HasKeys = requires(const Source& source) { source.key(std::int64_t{0}); };

template <typename Source>
__device__ auto key_of(const Source& source, std::int64_t row) {
  if constexpr (HasKeys<Source>) {
    return source.key(row);
  } else {
    return 0;
  }
}
template <typename Source, typename Key>
__device__ typename Source::Raw load_of(const Source& source, std::int64_t row, std::int64_t column,
                                        const Key& key) {
  if constexpr (HasKeys<Source>) {
    return source.load(row, column, key);
  } else {
    return source.load(row, column);
  }
}
template <typename Source, typename Key>
__device__ float factor_of(const Source& source, const Key& key) {
  if constexpr (requires { source.factor(key); }) {
    return source.factor(key);
  } else {
    return 1;
  }
}

// How many bytes of a source a thread holds ahead of their use: more would not fit in registers
// beside what is kept, and the driver sets memory aside for kernels that spill.
constexpr std::size_t kMostAheadBytes = 64;

// A block has as many rows as fill so many threads, where a row has fewer. 16,384 rows on an H200,
// bf16: gather_mul of 5,120 columns 83.7 us with 320 threads, 83.4 with 640, 84.4 with 960;
// silu_mul of 1,024 25.0 with 512, 24.8 with 640, 24.9 with 1,024; to fp8, where a block's rows
// wait for each other, 21.9 with 64, 21.4 with 128, 21.6 with 256.
template <typename Sink>
constexpr int kBlockThreads = Sink::kNeedsPeak ? 128 : 640;

// Threads that share threadIdx.y have a row, and the next one `gridDim.x * blockDim.y` on. What is
// known of the first is read together with the number of rows, of the next one together with the
// row: one after the other they would take 0.7 us each.
template <typename Source, typename Sink, int kVectors>
__global__ void __launch_bounds__(kMostRowThreads)
    counted_kernel(Source source, Sink sink, RowCount count, int vectors) {
  begin_dependent();
  begin_source(source);
  const auto column_of = [&](int i) {
    return static_cast<int>(threadIdx.x + i * blockDim.x) * kVectorSize;
  };
  const auto step = static_cast<int>(gridDim.x * blockDim.y);
  auto row = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  decltype(key_of(source, row)) key{};
  if (row < static_cast<int>(count.most)) key = key_of(source, row);
  const int rows = count.rows();
  // Threads without a row stay for the barriers of the others of their block.
  for (int turn = 0; row - static_cast<int>(threadIdx.y) < rows; row += step, turn ^= 1) {
    const int own_vectors = row < rows ? vectors : 0;
    const auto inside = [&](int i) {
      return static_cast<int>(threadIdx.x + i * blockDim.x) < own_vectors;
    };
    constexpr bool kLoadsAhead = sizeof(typename Source::Raw) * kVectors <= kMostAheadBytes;
    typename Source::Raw raw[kVectors];
    if constexpr (kLoadsAhead) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (inside(i)) raw[i] = load_of(source, row, column_of(i), key);
      }
    }
    const float factor = factor_of(source, key);
    const auto own = key;
    if (row + step < rows) key = key_of(source, row + step);
    uint4 kept[kVectors];
    SumAndPeak total;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!inside(i)) continue;
      if constexpr (!kLoadsAhead) raw[i] = load_of(source, row, column_of(i), own);
      kept[i] = source.keep(row, column_of(i), raw[i]);
      if constexpr (Sink::kNeedsPeak) {
        float values[kVectorSize];
        unpack(kept[i], values);
#pragma unroll
        for (const float value : values) total.peak = fmaxf(total.peak, fabsf(value));
      } else {
        sink.put(row, column_of(i), kept[i]);
      }
    }
    if constexpr (Sink::kNeedsPeak) {
      // Two in turn: who reads the one is waited for where the other is read.
      __shared__ SumAndPeak partial[2][kMostWarps];
      total = row_reduce<false, true>(total, partial[turn]);
      const float multiplier =
          sink.begin(row, factor, total.peak * fabsf(factor), threadIdx.x == 0 && row < rows);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!inside(i)) continue;
        float values[kVectorSize];
        unpack(kept[i], values);
#pragma unroll
        for (float& value : values) value *= multiplier;
        sink.put(row, column_of(i), values);
      }
    }
  }
}

// Any width and alignment, element by element.
template <typename Source, typename Sink>
__global__ void __launch_bounds__(kMostRowThreads)
    counted_scalar_kernel(Source source, Sink sink, RowCount count, std::int64_t columns) {
  begin_dependent();
  begin_source(source);
  const int rows = count.rows();
  for (auto row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
    const float factor = factor_of(source, key_of(source, row));
    SumAndPeak total;
    if constexpr (Sink::kNeedsPeak) {
      for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
        total.peak = fmaxf(total.peak, fabsf(source.first(row, column)));
      }
      total = row_reduce<false, true>(total);
    }
    const float multiplier = sink.begin(row, factor, total.peak * fabsf(factor), threadIdx.x == 0);
    for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
      sink.put(row, column, source.first(row, column) * multiplier);
    }
    if constexpr (Sink::kNeedsPeak) __syncthreads();
  }
}

// Writes sink = source for as many rows as `count` says. `preferred`: vectors of a thread where
// there are many rows (row_shape()). `aligned`: every pointer is 16-byte aligned.
template <typename Source, typename Sink>
void launch_counted_rows(const cuda::Stream& stream, const Source& source, const Sink& sink,
                         const RowCount& count, int preferred, bool aligned) {
  if (count.most == 0 || source.columns == 0) return;
  constexpr int kScalarThreads = 256;
  RowShape shape = row_shape(count.most, source.columns, preferred);
  if (count.most > kFewRows) {
    shape.rows_per_block = std::max(kBlockThreads<Sink> / shape.threads, 1);
  }
  const bool by_vectors = aligned && shape.vectors_per_thread > 0;
  const int threads = by_vectors ? shape.threads * shape.rows_per_block : kScalarThreads;
  const int rows_per_block = by_vectors ? shape.rows_per_block : 1;
  const auto run = [&](auto kernel, auto... columns) {
    const std::int64_t blocks =
        cuda::counted_blocks((count.most + rows_per_block - 1) / rows_per_block,
                             cuda::resident_blocks(kernel, threads), rows_per_block);
    cuda::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(blocks)),
                  .block = dim3(static_cast<unsigned>(threads / rows_per_block),
                                static_cast<unsigned>(rows_per_block)),
                  .programmatic = true},
                 kernel, source, sink, count, columns...);
  };
  const auto vectors = static_cast<int>(source.columns / kVectorSize);
  if (!by_vectors) return run(counted_scalar_kernel<Source, Sink>, source.columns);
  if (shape.vectors_per_thread == 1) return run(counted_kernel<Source, Sink, 1>, vectors);
  if (shape.vectors_per_thread == 2) return run(counted_kernel<Source, Sink, 2>, vectors);
  run(counted_kernel<Source, Sink, 4>, vectors);
}

}  // namespace
}  // namespace orrery

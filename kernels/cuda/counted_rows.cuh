#pragma once

// Kernels over rows whose number the device knows: the grid is sized to the machine, and each block
// loops to the count, so that rows past it cost nothing and are neither read nor written. Made of
// the sources and sinks of rows.cuh; a source may have begin(), which all threads of the block call
// once, ahead of its first row.

#include <algorithm>
#include <cstdlib>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_shape.h"
#include "kernels/cuda/rows.cuh"

namespace orrery {

struct RowCount {
  std::int64_t most = 0;                    // rows that there is room for
  const std::int32_t* on_device = nullptr;  // [1], how many there are; null: `most`

  __device__ std::int64_t rows() const {
    return on_device == nullptr ? most : min(most, static_cast<std::int64_t>(*on_device));
  }
};

namespace {

template <typename Source>
__device__ void begin_source(Source& source) {
  if constexpr (requires { source.begin(); }) source.begin();
}

template <typename Source, typename Sink, int kVectors>
__global__ void __launch_bounds__(kMostRowThreads)
    counted_kernel(Source source, Sink sink, RowCount count, int vectors) {
  begin_dependent();
  begin_source(source);
  const std::int64_t rows = count.rows();
  const auto column_of = [&](int i) {
    return static_cast<int>(threadIdx.x + i * blockDim.x) * kVectorSize;
  };
  const auto inside = [&](int i) {
    return static_cast<int>(threadIdx.x + i * blockDim.x) < vectors;
  };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
       row < rows; row += step) {
    typename Source::Raw raw[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (inside(i)) raw[i] = source.load(row, column_of(i));
    }
    uint4 kept[kVectors];
    SumAndPeak total;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!inside(i)) continue;
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
      total = row_reduce<false, true>(total);
      const float multiplier = sink.begin(row, 1, total.peak, threadIdx.x == 0);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (!inside(i)) continue;
        float values[kVectorSize];
        unpack(kept[i], values);
#pragma unroll
        for (float& value : values) value *= multiplier;
        sink.put(row, column_of(i), values);
      }
      if (blockDim.x > kWarpSize) __syncthreads();  // row_reduce's memory is free again
    }
  }
}

// Any width and alignment, element by element.
template <typename Source, typename Sink>
__global__ void __launch_bounds__(kMostRowThreads)
    counted_scalar_kernel(Source source, Sink sink, RowCount count, std::int64_t columns) {
  begin_dependent();
  begin_source(source);
  const std::int64_t rows = count.rows();
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    SumAndPeak total;
    if constexpr (Sink::kNeedsPeak) {
      for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
        total.peak = fmaxf(total.peak, fabsf(source.first(row, column)));
      }
      total = row_reduce<false, true>(total);
    }
    const float multiplier = sink.begin(row, 1, total.peak, threadIdx.x == 0);
    for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
      sink.put(row, column, source.first(row, column) * multiplier);
    }
    if constexpr (Sink::kNeedsPeak) __syncthreads();
  }
}

inline int counted_waves() {
  const char* text = std::getenv("ORRERY_WAVES");
  return text == nullptr ? 1 : std::atoi(text);
}
inline int counted_vectors(int otherwise) {
  const char* text = std::getenv("ORRERY_VECTORS");
  return text == nullptr ? otherwise : std::atoi(text);
}

// Writes sink = source for as many rows as `count` says. `preferred`: vectors of a thread, where
// there are many rows (row_shape()). `aligned`: every pointer is 16-byte aligned.
template <typename Source, typename Sink>
void launch_counted_rows(const cuda::Stream& stream, const Source& source, const Sink& sink,
                         const RowCount& count, int preferred, bool aligned) {
  if (count.most == 0 || source.columns == 0) return;
  constexpr int kScalarThreads = 256;
  const RowShape shape = row_shape(count.most, source.columns, counted_vectors(preferred));
  const bool by_vectors = aligned && shape.vectors_per_thread > 0;
  const int threads = by_vectors ? shape.threads * shape.rows_per_block : kScalarThreads;
  const int rows_per_block = by_vectors ? shape.rows_per_block : 1;
  const cudaDeviceProp& device = cuda::device_properties();
  const std::int64_t resident =
      std::min(device.maxBlocksPerMultiProcessor, device.maxThreadsPerMultiProcessor / threads) *
      static_cast<std::int64_t>(device.multiProcessorCount);
  const std::int64_t blocks =
      std::min((count.most + rows_per_block - 1) / rows_per_block, resident * counted_waves());
  const cuda::LaunchShape launch{.grid = dim3(static_cast<unsigned>(blocks)),
                                 .block = dim3(static_cast<unsigned>(threads / rows_per_block),
                                               static_cast<unsigned>(rows_per_block)),
                                 .programmatic = true};
  if (!by_vectors) {
    return cuda::launch(stream, launch, counted_scalar_kernel<Source, Sink>, source, sink, count,
                        source.columns);
  }
  const auto kernel = shape.vectors_per_thread == 1   ? counted_kernel<Source, Sink, 1>
                      : shape.vectors_per_thread == 2 ? counted_kernel<Source, Sink, 2>
                                                      : counted_kernel<Source, Sink, 4>;
  cuda::launch(stream, launch, kernel, source, sink, count,
               static_cast<int>(source.columns / kVectorSize));
}

}  // namespace
}  // namespace orrery

#pragma once

// Kernels that write each element of a row from the same element of their operands, with nothing
// to reduce (sources and sinks of rows.cuh). Each thread loads its vectors of a row, all of them
// ahead of the first use, and writes them. Bound by HBM. residual_add of 16,384 x 8,192 on an H200:
// 184.7 us, as long as a bare stream of as many bytes (4.36 TB/s).

#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/row_shape.h"
#include "kernels/cuda/rows.cuh"

namespace orrery {
namespace {

constexpr int kMostMapThreads = 256;

template <typename Source, typename Sink, int kVectors>
__global__ void __launch_bounds__(kMostMapThreads)
    map_kernel(Source source, Sink sink, std::int64_t rows, std::int64_t vectors, unsigned chunks) {
  begin_dependent();
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x / chunks) * blockDim.y + threadIdx.y;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x % chunks) * blockDim.x * kVectors + threadIdx.x;
  if (row >= rows) return;
  typename Source::Raw raw[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t vector = first + i * blockDim.x;
    if (vector < vectors) raw[i] = source.load(row, vector * kVectorSize);
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t vector = first + i * blockDim.x;
    if (vector >= vectors) continue;
    sink.put(row, vector * kVectorSize, source.keep(row, vector * kVectorSize, raw[i]));
  }
}

// Any width and alignment, element by element.
template <typename Source, typename Sink>
__global__ void __launch_bounds__(kMostMapThreads)
    map_scalar_kernel(Source source, Sink sink, std::int64_t columns) {
  begin_dependent();
  const std::int64_t row = blockIdx.x;
  const float multiplier = sink.begin(row, 1, 0, false);
  for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
    sink.put(row, column, source.first(row, column) * multiplier);
  }
}

// Writes sink = source. `aligned`: every pointer is 16-byte aligned.
template <typename Source, typename Sink>
void launch_map(const cuda::Stream& stream, const Source& source, const Sink& sink,
                std::int64_t rows, bool aligned) {
  if (rows == 0 || source.columns == 0) return;
  if (!aligned || source.columns % kVectorSize != 0) {
    cuda::launch(stream,
                 {.grid = dim3(static_cast<unsigned>(rows)),
                  .block = dim3(kMostMapThreads),
                  .programmatic = true},
                 map_scalar_kernel<Source, Sink>, source, sink, source.columns);
    return;
  }
  constexpr int kMost = Sink::kVectors;
  const std::int64_t vectors = source.columns / kVectorSize;
  const MapShape shape = map_shape(rows, vectors, kMost);
  const auto kernel =
      shape.vectors_per_thread == 1 ? map_kernel<Source, Sink, 1> : map_kernel<Source, Sink, kMost>;
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(shape.blocks(rows))),
                .block = dim3(static_cast<unsigned>(shape.threads_x),
                              static_cast<unsigned>(shape.rows_per_block)),
                .programmatic = true},
               kernel, source, sink, rows, vectors, static_cast<unsigned>(shape.chunks));
}

}  // namespace
}  // namespace orrery

#pragma once

// Kernels that reduce each row before they write it (norms, rowwise quantisation). A row is read
// once and stays in registers, packed as bf16, between the reduction and the write:
//
//   load all vectors -> sum of squares and largest |x w| in one reduction -> scale, round, write
//
// The largest |y| is the largest |x w| times 1 / rms, so the norm and the fp8 scale need one
// reduction together. Bound by HBM: the bytes of source and sink.

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_shape.h"
#include "kernels/cuda/rows.cuh"

namespace orrery {

// Values as they are.
struct NoNorm {
  static constexpr bool kNorm = false;
};
// x / sqrt(mean(x^2) + epsilon) * weight; weight [columns]
struct RmsNorm {
  static constexpr bool kNorm = true;
  const bf16* weight;
  float epsilon;
};

namespace {

__device__ inline void multiply(float (&values)[kVectorSize], const uint4& weight) {
  float factors[kVectorSize];
  unpack(weight, factors);
#pragma unroll
  for (int i = 0; i < kVectorSize; ++i) values[i] *= factors[i];
}

// One row of the source at a time for the threads that share threadIdx.y, `rows_apart` from one to
// the next. With kPrefetch the next row's vectors are loaded before this one is reduced.
template <typename Source, typename Norm, typename Sink, int kVectors, bool kPrefetch>
__global__ void __launch_bounds__(kMostRowThreads)
    row_kernel(Source source, Norm norm, Sink sink, std::int64_t rows, int vectors) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  using Raw = typename Source::Raw;
  const std::int64_t rows_apart = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const auto vector_of = [&](int i) { return static_cast<int>(threadIdx.x + i * blockDim.x); };
  const auto load = [&](std::int64_t from, Raw(&raw)[kVectors]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (from < rows && vector_of(i) < vectors) {
        raw[i] = source.load(from, vector_of(i) * kVectorSize);
      }
    }
  };
  Raw raw[kVectors];
  load(row, raw);
  for (int turn = 0; row < rows; row += rows_apart, turn ^= 1) {
    uint4 weight[kVectors];
    uint4 kept[kVectors];
    if constexpr (Norm::kNorm) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (vector_of(i) < vectors) {
          weight[i] = load_constant(norm.weight + vector_of(i) * kVectorSize);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (vector_of(i) < vectors) kept[i] = source.keep(row, vector_of(i) * kVectorSize, raw[i]);
    }
    if constexpr (kPrefetch) load(row + rows_apart, raw);
    SumAndPeak total;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (vector_of(i) >= vectors) continue;
      float values[kVectorSize];
      unpack(kept[i], values);
      if constexpr (Norm::kNorm) {
#pragma unroll
        for (const float value : values) total.sum += value * value;
      }
      if constexpr (Sink::kNeedsPeak) {
        if constexpr (Norm::kNorm) multiply(values, weight[i]);
#pragma unroll
        for (const float value : values) total.peak = fmaxf(total.peak, fabsf(value));
      }
    }
    total = row_reduce<Norm::kNorm, Sink::kNeedsPeak>(total, turn);
    float factor = 1;
    if constexpr (Norm::kNorm) {
      factor = rsqrtf(total.sum / static_cast<float>(vectors * kVectorSize) + norm.epsilon);
    }
    const float multiplier = sink.begin(row, factor, total.peak * factor, threadIdx.x == 0);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (vector_of(i) >= vectors) continue;
      float values[kVectorSize];
      unpack(kept[i], values);
      if constexpr (Norm::kNorm) multiply(values, weight[i]);
#pragma unroll
      for (float& value : values) value *= multiplier;
      sink.put(row, vector_of(i) * kVectorSize, values);
    }
    if constexpr (!kPrefetch) load(row + rows_apart, raw);
  }
}

// Any width and alignment, element by element; a block per row, which is read twice.
template <typename Source, typename Norm, typename Sink>
__global__ void __launch_bounds__(kMostRowThreads)
    row_scalar_kernel(Source source, Norm norm, Sink sink, std::int64_t columns) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t row = blockIdx.x;
  const auto weight = [&](std::int64_t column) {
    if constexpr (Norm::kNorm) return __bfloat162float(norm.weight[column]);
    return 1.0f;
  };
  SumAndPeak total;
  for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
    const float value = source.first(row, column);
    total.sum += value * value;
    total.peak = fmaxf(total.peak, fabsf(value * weight(column)));
  }
  total = row_reduce<true, true>(total, 0);
  float factor = 1;
  if constexpr (Norm::kNorm) {
    factor = rsqrtf(total.sum / static_cast<float>(columns) + norm.epsilon);
  }
  const float multiplier = sink.begin(row, factor, total.peak * factor, threadIdx.x == 0);
  for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
    sink.put(row, column, source.again(row, column) * weight(column) * multiplier);
  }
}

// Blocks that are on the device at once; fewer when there are fewer rows.
template <typename Kernel>
unsigned resident_blocks(Kernel* kernel, const RowShape& shape, std::int64_t rows) {
  int per_multiprocessor = 0;
  ORRERY_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &per_multiprocessor, kernel, shape.threads * shape.rows_per_block, 0));
  const std::int64_t blocks = (rows + shape.rows_per_block - 1) / shape.rows_per_block;
  const std::int64_t most =
      static_cast<std::int64_t>(per_multiprocessor) * cuda::device_properties().multiProcessorCount;
  return static_cast<unsigned>(std::min(blocks, most));
}

template <int kVectors, typename Source, typename Norm, typename Sink>
void launch_row_kernel(const cuda::Stream& stream, const RowShape& shape, const Source& source,
                       const Norm& norm, const Sink& sink, std::int64_t rows) {
  const auto kernel = row_kernel<Source, Norm, Sink, kVectors, (kVectors == 4)>;
  const auto threads =
      dim3(static_cast<unsigned>(shape.threads), static_cast<unsigned>(shape.rows_per_block));
  cuda::launch(
      stream,
      {.grid = dim3(resident_blocks(kernel, shape, rows)), .block = threads, .programmatic = true},
      kernel, source, norm, sink, rows, static_cast<int>(source.columns / kVectorSize));
}

// Writes sink = norm(source). `aligned`: every pointer is 16-byte aligned.
template <typename Source, typename Norm, typename Sink>
void launch_rows(const cuda::Stream& stream, const Source& source, const Norm& norm,
                 const Sink& sink, std::int64_t rows, bool aligned) {
  if (rows == 0 || source.columns == 0) return;
  const RowShape shape = row_shape(rows, source.columns);
  switch (aligned ? shape.vectors_per_thread : 0) {
    case 1:
      return launch_row_kernel<1>(stream, shape, source, norm, sink, rows);
    case 2:
      return launch_row_kernel<2>(stream, shape, source, norm, sink, rows);
    case 4:
      return launch_row_kernel<4>(stream, shape, source, norm, sink, rows);
    case 8:
      return launch_row_kernel<8>(stream, shape, source, norm, sink, rows);
    default:
      break;
  }
  constexpr unsigned kThreads = 256;
  cuda::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(kThreads), .programmatic = true},
      row_scalar_kernel<Source, Norm, Sink>, source, norm, sink, source.columns);
}

}  // namespace
}  // namespace orrery

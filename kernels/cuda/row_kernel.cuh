#pragma once

// Kernels that reduce each row before they write it (norms, rowwise quantisation). A row is read
// once and stays in registers, packed as bf16, between the reduction and the write:
//
//   load all vectors -> sum of squares and largest |x w| in one reduction -> scale, round, write
//
// The largest |y| is the largest |x w| times 1 / rms, so the norm and the fp8 scale need one
// reduction together. Bound by HBM: the bytes of source and sink. One block per row and no more: how
// many rows are on the way at once follows from registers per block alone (at 4 vectors per thread
// 57, no spills). Blocks that stay and load the next row ahead (96 registers) took 12 % longer on an
// H200, a ring of rows in shared memory filled by the copy engine 14 %.
//
// 16,384 rows on an H200, of 8,192 columns: rms_norm 131 us (4.10 TB/s), to fp8 99 us (4.07);
// add_rms_norm 262 us (4.09), to fp8 224 us (4.20); silu_mul of 14,336 columns to fp8 284 us (4.14).
// A copy streams 4.23 there, two reads to a write 4.38.

#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
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

// A row of the source for the threads that share threadIdx.y. Where a thread holds few vectors it
// holds their weights as well, loaded with them; else weights are loaded when needed, mostly from
// the L1 cache, and the registers hold more blocks.
template <typename Source, typename Norm, typename Sink, int kVectors>
__global__ void __launch_bounds__(kMostRowThreads)
    row_kernel(Source source, Norm norm, Sink sink, std::int64_t rows, int vectors) {
  begin_dependent();
  constexpr bool kHoldsWeights = Norm::kNorm && kVectors <= 2;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const auto column_of = [&](int i) {
    return static_cast<int>(threadIdx.x + i * blockDim.x) * kVectorSize;
  };
  const auto inside = [&](int i) {
    return static_cast<int>(threadIdx.x + i * blockDim.x) < vectors;
  };
  typename Source::Raw raw[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (inside(i)) raw[i] = source.load(row, column_of(i));
  }
  uint4 held[kVectors];
  if constexpr (kHoldsWeights) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (inside(i)) held[i] = load_constant(norm.weight + column_of(i));
    }
  }
  const auto weigh = [&](int i, float(&values)[kVectorSize]) {
    if constexpr (kHoldsWeights) {
      multiply(values, held[i]);
    } else if constexpr (Norm::kNorm) {
      multiply(values, load_constant(norm.weight + column_of(i)));
    }
  };
  uint4 kept[kVectors];
  SumAndPeak total;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!inside(i)) continue;
    kept[i] = source.keep(row, column_of(i), raw[i]);
    float values[kVectorSize];
    unpack(kept[i], values);
    if constexpr (Norm::kNorm) {
#pragma unroll
      for (const float value : values) total.sum += value * value;
    }
    if constexpr (Sink::kNeedsPeak) {
      weigh(i, values);
#pragma unroll
      for (const float value : values) total.peak = fmaxf(total.peak, fabsf(value));
    }
  }
  total = row_reduce<Norm::kNorm, Sink::kNeedsPeak>(total);
  float factor = 1;
  if constexpr (Norm::kNorm) {
    factor = rsqrtf(total.sum / static_cast<float>(vectors * kVectorSize) + norm.epsilon);
  }
  const float multiplier = sink.begin(row, factor, total.peak * factor, threadIdx.x == 0);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (!inside(i)) continue;
    float values[kVectorSize];
    unpack(kept[i], values);
    weigh(i, values);
#pragma unroll
    for (float& value : values) value *= multiplier;
    sink.put(row, column_of(i), values);
  }
}

// Any width and alignment, element by element; a block per row, which is read twice.
template <typename Source, typename Norm, typename Sink>
__global__ void __launch_bounds__(kMostRowThreads)
    row_scalar_kernel(Source source, Norm norm, Sink sink, std::int64_t columns) {
  begin_dependent();
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
  total = row_reduce<true, true>(total);
  float factor = 1;
  if constexpr (Norm::kNorm) {
    factor = rsqrtf(total.sum / static_cast<float>(columns) + norm.epsilon);
  }
  const float multiplier = sink.begin(row, factor, total.peak * factor, threadIdx.x == 0);
  for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
    sink.put(row, column, source.again(row, column) * weight(column) * multiplier);
  }
}

template <int kVectors, typename Source, typename Norm, typename Sink>
void launch_row_kernel(const cuda::Stream& stream, const RowShape& shape, const Source& source,
                       const Norm& norm, const Sink& sink, std::int64_t rows) {
  const std::int64_t blocks = (rows + shape.rows_per_block - 1) / shape.rows_per_block;
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(static_cast<unsigned>(shape.threads),
                              static_cast<unsigned>(shape.rows_per_block)),
                .programmatic = true},
               row_kernel<Source, Norm, Sink, kVectors>, source, norm, sink, rows,
               static_cast<int>(source.columns / kVectorSize));
}

// Writes sink = norm(source). `aligned`: every pointer is 16-byte aligned.
template <typename Source, typename Norm, typename Sink>
void launch_rows(const cuda::Stream& stream, const Source& source, const Norm& norm,
                 const Sink& sink, std::int64_t rows, bool aligned) {
  if (rows == 0 || source.columns == 0) return;
  const RowShape shape = row_shape(rows, source.columns, Source::kRowVectors);
  switch (aligned ? shape.vectors_per_thread : 0) {
    case 1:
      return launch_row_kernel<1>(stream, shape, source, norm, sink, rows);
    case 2:
      return launch_row_kernel<2>(stream, shape, source, norm, sink, rows);
    case 4:
      return launch_row_kernel<4>(stream, shape, source, norm, sink, rows);
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

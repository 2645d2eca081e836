#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/execute/weight_value.h"
#include "kernels/execute/weights.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // columns of a thread

// Rows and columns of a block of the whole weight that lie together on this rank.
struct Block {
  std::uint64_t key = 0;
  std::int64_t first_row = 0;  // in the whole
  std::int64_t first_column = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;  // elements from row to row of the rank's tensor
  float bound = 0;
  bool is_gain = false;
};

__device__ std::uint16_t element(const Block& block, std::uint16_t, float noise) {
  return bf16_bits(weight_value(noise, block.bound, block.is_gain));
}
__device__ float element(const Block& block, float, float noise) {
  return weight_value(noise, block.bound, block.is_gain);
}
__device__ std::uint8_t element(const Block&, std::uint8_t, float noise) {
  return __nv_cvt_float_to_fp8(kFp8WeightRange * noise, __NV_SATFINITE, __NV_E4M3);
}

// Each thread writes kVector columns of a row. `data` is the block's first element.
template <typename Element>
__global__ void __launch_bounds__(kThreads) fill_kernel(Block block, Element* data, bool aligned) {
  struct alignas(kVector * sizeof(Element)) Vector {
    Element elements[kVector];
  };
  const std::int64_t vectors = (block.columns + kVector - 1) / kVector;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < block.rows * vectors; i += step) {
    const std::int64_t row = i / vectors;
    const std::int64_t column = (i - row * vectors) * kVector;
    Vector vector;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const float noise =
          weight_noise(block.key, block.first_row + row, block.first_column + column + j);
      vector.elements[j] = element(block, Element{}, noise);
    }
    Element* const out = data + row * block.stride + column;
    if (aligned && column + kVector <= block.columns) {
      *reinterpret_cast<Vector*>(out) = vector;
      continue;
    }
    for (int j = 0; j < kVector && column + j < block.columns; ++j) out[j] = vector.elements[j];
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_scales_kernel(float* scales, std::int64_t rows, float scale) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows) scales[row] = scale;
}

template <typename Element>
void fill(const cuda::Stream& stream, const WeightShard& shard, std::uint64_t key, Element* data) {
  constexpr std::int64_t kMostBlocks = 16384;
  for (const AxisRange& rows : shard.row_ranges) {
    for (const AxisRange& columns : shard.column_ranges) {
      const Block block{.key = key,
                        .first_row = rows.global,
                        .first_column = columns.global,
                        .rows = rows.count,
                        .columns = columns.count,
                        .stride = shard.columns,
                        .bound = static_cast<float>(shard.bound),
                        .is_gain = shard.is_gain};
      Element* const first = data + rows.local * shard.columns + columns.local;
      const bool aligned =
          shard.columns % kVector == 0 &&
          reinterpret_cast<std::uintptr_t>(first) % (kVector * sizeof(Element)) == 0;
      const std::int64_t vectors = rows.count * ((columns.count + kVector - 1) / kVector);
      const std::int64_t blocks = std::min((vectors + kThreads - 1) / kThreads, kMostBlocks);
      if (blocks == 0) continue;
      cuda::launch(stream, {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)},
                   fill_kernel<Element>, block, first, aligned);
    }
  }
}

std::int64_t num_filled(const std::vector<AxisRange>& ranges) {
  std::int64_t count = 0;
  for (const AxisRange& range : ranges) count += range.count;
  return count;
}

}  // namespace

void fill_weight(const cuda::Stream& stream, const WeightShard& shard, std::int64_t copy,
                 DType dtype, void* data, float* scales, std::uint64_t seed) {
  require_stored_dtype(shard, dtype);
  const auto element_bytes = static_cast<std::size_t>(bytes_per_element(dtype));
  if (num_filled(shard.row_ranges) < shard.rows ||
      num_filled(shard.column_ranges) < shard.columns) {
    ORRERY_CUDA(cudaMemsetAsync(
        data, 0, static_cast<std::size_t>(shard.rows * shard.columns) * element_bytes,
        stream.get()));
  }
  const std::uint64_t key = weight_key(seed, weight_name_hash(shard.name), shard.first_copy + copy);
  if (dtype == DType::kBf16) {
    fill(stream, shard, key, static_cast<std::uint16_t*>(data));
    return;
  }
  if (dtype == DType::kFp32) {
    fill(stream, shard, key, static_cast<float*>(data));
    return;
  }
  fill(stream, shard, key, static_cast<std::uint8_t*>(data));
  const auto blocks = static_cast<unsigned>((shard.rows + kThreads - 1) / kThreads);
  cuda::launch(stream, {.grid = dim3(blocks), .block = dim3(kThreads)}, fill_scales_kernel, scales,
               shard.rows, static_cast<float>(shard.bound) / kFp8WeightRange);
}

}  // namespace orrery

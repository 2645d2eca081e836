#pragma once

// What the hosts of the tiled kernels (tiled_sm90.cu, swap_ab_sm90.cu) pass to the GPU alike.

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"
#include "kernels/experts/grouped_gemm/tile_schedule.cuh"

namespace orrery::tiles {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Of a row-major matrix of T, [rows, columns], boxes of box_rows x box_columns; fp8 as bytes.
template <typename T>
CUtensorMap map_of(const void* data, std::int64_t rows, std::int64_t columns, int box_rows,
                   int box_columns) {
  return cuda::matrix_map(cuda::kMapType<T>, data, static_cast<std::uint64_t>(rows),
                          static_cast<std::uint64_t>(columns),
                          static_cast<std::uint64_t>(columns) * sizeof(T),
                          static_cast<std::uint32_t>(box_rows),
                          static_cast<std::uint32_t>(box_columns), cuda::Swizzle::k128);
}

template <typename C>
Arguments arguments_of(const GroupedGemmShape& shape, const TiledChoice& choice,
                       const GroupedGemmOperands& operands) {
  return {.counts = operands.counts,
          .x_scale = operands.x_scale,
          .w_scale = operands.w_scale,
          .y = static_cast<bf16*>(operands.y),
          .target = operands.scatter,
          .groups = static_cast<int>(shape.groups),
          .max_rows = static_cast<int>(shape.max_rows),
          .n = static_cast<int>(shape.n),
          .k_steps = static_cast<int>(ceil_div(shape.k, C::kK)),
          .block_tiles = std::max(choice.block_rows / C::kRows, 1)};
}

// One block per SM but `free_sms`, or fewer where there cannot be so many tiles, which have at
// least `least_rows` rows but one of each group. Throws std::invalid_argument for more than 2^31
// - 1.
template <typename C>
unsigned num_blocks(const GroupedGemmShape& shape, int least_rows, int free_sms) {
  const std::int64_t tiles = std::min(shape.max_rows, shape.max_rows / least_rows + shape.groups) *
                             ceil_div(shape.n, C::kColumns);
  constexpr std::int64_t kMostTiles = 0x7FFFFFFF;
  if (tiles > kMostTiles) throw std::invalid_argument("grouped_gemm: too many tiles");
  return static_cast<unsigned>(
      std::min<std::int64_t>(cuda::device_properties().multiProcessorCount - free_sms, tiles));
}

}  // namespace orrery::tiles

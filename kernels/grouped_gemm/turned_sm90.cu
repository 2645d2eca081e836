#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/grouped_gemm/tiled.h"
#include "kernels/grouped_gemm/turned_sm90.cuh"

namespace orrery {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <typename C>
turned::Maps make_maps(const GroupedGemmShape& shape, const GroupedGemmOperands& operands) {
  constexpr auto kType =
      sizeof(typename C::T) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto map = [](CUtensorMapDataType type, const void* data, std::int64_t rows,
                      std::int64_t columns, int element, int box_rows, int box_columns) {
    return cuda::matrix_map(
        type, data, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
        static_cast<std::uint64_t>(columns * element), static_cast<std::uint32_t>(box_rows),
        static_cast<std::uint32_t>(box_columns), cuda::Swizzle::k128);
  };
  constexpr int kSize = sizeof(typename C::T);
  turned::Maps maps{
      .x = {},
      .w = map(kType, operands.w, shape.groups * shape.n, shape.k, kSize, C::kColumns, C::kK),
      .y = {}};
  for (int i = 0; i < 4; ++i) {
    maps.x[i] = map(kType, operands.x, shape.max_rows, shape.k, kSize, 16 << i, C::kK);
  }
  if (operands.y != nullptr && shape.n % 8 == 0) {
    maps.y = map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, operands.y, shape.max_rows, shape.n,
                 sizeof(bf16), turned::kChunk, 64);
  }
  return maps;
}

template <typename C>
void launch_turned(const cuda::Stream& stream, const GroupedGemmShape& shape,
                   const GroupedGemmOperands& operands, bool programmatic) {
  const tiles::Arguments arguments{.counts = operands.counts,
                                   .x_scale = operands.x_scale,
                                   .w_scale = operands.w_scale,
                                   .y = operands.y,
                                   .target = operands.scatter,
                                   .groups = static_cast<int>(shape.groups),
                                   .max_rows = static_cast<int>(shape.max_rows),
                                   .n = static_cast<int>(shape.n),
                                   .k_steps = static_cast<int>(ceil_div(shape.k, C::kK))};
  // One block per multiprocessor, or fewer where there cannot be so many tiles.
  const std::int64_t tiles =
      std::min(shape.max_rows, shape.max_rows / 16 + shape.groups) * ceil_div(shape.n, C::kColumns);
  constexpr std::int64_t kMostTiles = 0x7FFFFFFF;
  if (tiles > kMostTiles) throw std::invalid_argument("grouped_gemm: too many tiles");
  const auto blocks = std::min<std::int64_t>(cuda::device_properties().multiProcessorCount, tiles);
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(C::kThreads),
                .shared_bytes = sizeof(turned::Shared<C>),
                .programmatic = programmatic},
               turned::turned_kernel<C>, make_maps<C>(shape, operands), arguments);
}

// Four stages and the buffers of y fill the shared memory.
template <typename T>
using Tile = turned::Config<T, kTurnedChoice.rows, kTurnedChoice.columns / 128, 4, 2>;

}  // namespace

void grouped_gemm_turned(const cuda::Stream& stream, const GroupedGemmShape& shape,
                         const GroupedGemmOperands& operands, bool programmatic) {
  if (shape.dtype == DType::kFp8) {
    launch_turned<Tile<fp8>>(stream, shape, operands, programmatic);
  } else {
    launch_turned<Tile<bf16>>(stream, shape, operands, programmatic);
  }
}

}  // namespace orrery

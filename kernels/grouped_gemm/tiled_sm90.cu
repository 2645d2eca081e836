#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/grouped_gemm/tiled.h"
#include "kernels/grouped_gemm/tiled_sm90.cuh"

namespace orrery {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <typename C>
tiled::Maps make_maps(const GroupedGemmShape& shape, const GroupedGemmOperands& operands) {
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
  tiled::Maps maps{
      .x = map(kType, operands.x, shape.max_rows, shape.k, kSize, C::kM, C::kK),
      .w = map(kType, operands.w, shape.groups * shape.n, shape.k, kSize, C::kN, C::kK),
      .w_part = map(kType, operands.w, shape.groups * shape.n, shape.k, kSize, 64, C::kK),
      .y = {}};
  if (operands.y != nullptr && shape.n % 8 == 0) {
    maps.y = map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, operands.y, shape.max_rows, shape.n,
                 sizeof(bf16), 64, 64);
  }
  return maps;
}

template <typename C>
void launch_tiled(const cuda::Stream& stream, const GroupedGemmShape& shape,
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
  const std::int64_t tiles = std::min(shape.max_rows, shape.max_rows / C::kRows + shape.groups) *
                             ceil_div(shape.n, C::kColumns);
  constexpr std::int64_t kMostTiles = 0x7FFFFFFF;
  if (tiles > kMostTiles) throw std::invalid_argument("grouped_gemm: too many tiles");
  const auto blocks = std::min<std::int64_t>(cuda::device_properties().multiProcessorCount, tiles);
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(C::kThreads),
                .shared_bytes = sizeof(tiled::Shared<C>),
                .programmatic = programmatic},
               tiled::tiled_kernel<C>, make_maps<C>(shape, operands), arguments);
}

// Four stages fill the shared memory.
template <typename T>
using Tile = tiled::Config<T, TiledChoice{}.rows, TiledChoice{}.columns, 4, 2>;

}  // namespace

void grouped_gemm_tiled(const cuda::Stream& stream, const GroupedGemmShape& shape,
                        const TiledChoice& choice, const GroupedGemmOperands& operands,
                        bool programmatic) {
  if (choice == kTurnedChoice) {
    return grouped_gemm_turned(stream, shape, operands, programmatic);
  }
  if (choice != TiledChoice{}) {
    throw std::invalid_argument("grouped_gemm: no tiles of " + std::to_string(choice.rows) +
                                " rows x " + std::to_string(choice.columns) + " columns are built");
  }
  if (shape.dtype == DType::kFp8) {
    launch_tiled<Tile<fp8>>(stream, shape, operands, programmatic);
  } else {
    launch_tiled<Tile<bf16>>(stream, shape, operands, programmatic);
  }
}

}  // namespace orrery

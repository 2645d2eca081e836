#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/experts/grouped_gemm/tile_launch.cuh"
#include "kernels/experts/grouped_gemm/tiled.h"
#include "kernels/experts/grouped_gemm/tiled_sm90.cuh"
#include "kernels/experts/grouped_gemm/types.h"

namespace orrery {
namespace {

template <typename C>
tiled::Maps make_maps(const GroupedGemmShape& shape, const GroupedGemmOperands& operands) {
  using T = typename C::T;
  using tiles::map_of;
  tiled::Maps maps{.x = map_of<T>(operands.x, shape.max_rows, shape.k, C::kM, C::kK),
                   .w = map_of<T>(operands.w, shape.groups * shape.n, shape.k, C::kN, C::kK),
                   .w_part = map_of<T>(operands.w, shape.groups * shape.n, shape.k, 64, C::kK),
                   .y = {}};
  if (operands.y != nullptr && shape.n % 8 == 0) {
    maps.y = map_of<GroupedGemmResult<T>>(operands.y, shape.max_rows, shape.n, 64, 64);
  }
  return maps;
}

template <typename C>
void launch_tiled(const cuda::Stream& stream, const GroupedGemmShape& shape,
                  const TiledChoice& choice, const GroupedGemmOperands& operands,
                  const TiledOptions& options) {
  cuda::launch(stream,
               {.grid = dim3(tiles::num_blocks<C>(shape, C::kRows, options.free_sms)),
                .block = dim3(C::kThreads),
                .shared_bytes = sizeof(tiled::Shared<C>),
                .programmatic = options.programmatic},
               tiled::tiled_kernel<C>, make_maps<C>(shape, operands),
               tiles::arguments_of<C>(shape, choice, operands));
}

// In whatever order.
bool is_tile_of(const TiledChoice& choice, const TiledChoice& built) {
  return choice.rows == built.rows && choice.columns == built.columns;
}

// Four stages fill the shared memory.
template <typename T>
using Tile = tiled::Config<T, TiledChoice{}.rows, TiledChoice{}.columns, 4, 2>;
using TileInAnyOrder = tiled::Config<bf16, TiledChoice{}.rows, TiledChoice{}.columns, 4, 2, 0>;

}  // namespace

void grouped_gemm_tiled(const cuda::Stream& stream, const GroupedGemmShape& shape,
                        const TiledChoice& choice, const GroupedGemmOperands& operands,
                        const TiledOptions& options) {
  if (choice.block_rows != TiledChoice{}.block_rows && shape.dtype != DType::kBf16) {
    throw std::invalid_argument("grouped_gemm: tiles in blocks of " +
                                std::to_string(choice.block_rows) + " rows are built for bf16");
  }
  if (is_tile_of(choice, kSwapAbChoice)) {
    return grouped_gemm_swap_ab(stream, shape, choice, operands, options);
  }
  if (!is_tile_of(choice, TiledChoice{})) {
    throw std::invalid_argument("grouped_gemm: no tiles of " + std::to_string(choice.rows) +
                                " rows x " + std::to_string(choice.columns) + " columns are built");
  }
  if (choice.block_rows != TiledChoice{}.block_rows) {
    return launch_tiled<TileInAnyOrder>(stream, shape, choice, operands, options);
  }
  with_grouped_gemm_type(shape.dtype, [&]<typename T>() {
    launch_tiled<Tile<T>>(stream, shape, choice, operands, options);
  });
}

}  // namespace orrery

#include "kernels/cuda/launch.h"
#include "kernels/experts/grouped_gemm/swap_ab_sm90.cuh"
#include "kernels/experts/grouped_gemm/tile_launch.cuh"
#include "kernels/experts/grouped_gemm/tiled.h"
#include "kernels/experts/grouped_gemm/types.h"

namespace orrery {
namespace {

template <typename C>
swap_ab::Maps make_maps(const GroupedGemmShape& shape, const GroupedGemmOperands& operands) {
  using T = typename C::T;
  using tiles::map_of;
  swap_ab::Maps maps{
      .x = {},
      .w = map_of<T>(operands.w, shape.groups * shape.n, shape.k, C::kColumns, C::kK),
      .y = {}};
  for (int i = 0; i < 4; ++i) {
    maps.x[i] = map_of<T>(operands.x, shape.max_rows, shape.k, 16 << i, C::kK);
  }
  if (operands.y != nullptr && shape.n % 8 == 0) {
    maps.y = map_of<GroupedGemmResult<T>>(operands.y, shape.max_rows, shape.n, swap_ab::kChunk, 64);
  }
  return maps;
}

template <typename C>
void launch_swap_ab(const cuda::Stream& stream, const GroupedGemmShape& shape,
                    const TiledChoice& choice, const GroupedGemmOperands& operands,
                    const TiledOptions& options) {
  cuda::launch(stream,
               {.grid = dim3(tiles::num_blocks<C>(shape, 16, options.free_sms)),
                .block = dim3(C::kThreads),
                .shared_bytes = sizeof(swap_ab::Shared<C>),
                .programmatic = options.programmatic},
               swap_ab::swap_ab_kernel<C>, make_maps<C>(shape, operands),
               tiles::arguments_of<C>(shape, choice, operands));
}

// Four stages and the buffers of y fill the shared memory.
template <typename T>
using Tile = swap_ab::Config<T, kSwapAbChoice.rows, kSwapAbChoice.columns / 128, 4, 2>;
using TileInAnyOrder =
    swap_ab::Config<bf16, kSwapAbChoice.rows, kSwapAbChoice.columns / 128, 4, 2, 0>;

}  // namespace

void grouped_gemm_swap_ab(const cuda::Stream& stream, const GroupedGemmShape& shape,
                          const TiledChoice& choice, const GroupedGemmOperands& operands,
                          const TiledOptions& options) {
  if (choice.block_rows != TiledChoice{}.block_rows) {
    return launch_swap_ab<TileInAnyOrder>(stream, shape, choice, operands, options);
  }
  with_grouped_gemm_type(shape.dtype, [&]<typename T>() {
    launch_swap_ab<Tile<T>>(stream, shape, choice, operands, options);
  });
}

}  // namespace orrery

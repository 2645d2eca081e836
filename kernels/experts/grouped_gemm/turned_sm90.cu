#include "kernels/cuda/launch.h"
#include "kernels/experts/grouped_gemm/tile_launch.cuh"
#include "kernels/experts/grouped_gemm/tiled.h"
#include "kernels/experts/grouped_gemm/turned_sm90.cuh"

namespace orrery {
namespace {

template <typename C>
turned::Maps make_maps(const GroupedGemmShape& shape, const GroupedGemmOperands& operands) {
  using T = typename C::T;
  using tiles::map_of;
  turned::Maps maps{.x = {},
                    .w = map_of<T>(operands.w, shape.groups * shape.n, shape.k, C::kColumns, C::kK),
                    .y = {}};
  for (int i = 0; i < 4; ++i) {
    maps.x[i] = map_of<T>(operands.x, shape.max_rows, shape.k, 16 << i, C::kK);
  }
  if (operands.y != nullptr && shape.n % 8 == 0) {
    maps.y = map_of<bf16>(operands.y, shape.max_rows, shape.n, turned::kChunk, 64);
  }
  return maps;
}

template <typename C>
void launch_turned(const cuda::Stream& stream, const GroupedGemmShape& shape,
                   const GroupedGemmOperands& operands, bool programmatic) {
  cuda::launch(stream,
               {.grid = dim3(tiles::num_blocks<C>(shape, 16)),
                .block = dim3(C::kThreads),
                .shared_bytes = sizeof(turned::Shared<C>),
                .programmatic = programmatic},
               turned::turned_kernel<C>, make_maps<C>(shape, operands),
               tiles::arguments_of<C>(shape, operands));
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

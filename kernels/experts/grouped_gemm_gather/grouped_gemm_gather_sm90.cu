// The tiles of grouped_gemm (tiled_sm90.cuh, swap_ab_sm90.cuh) with rows of x that are gathered by
// four warps in place of one that asks the copy engine. These warps keep where their rows begin, so
// they have 56 registers, and warps that multiply 224.

#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/experts/grouped_gemm/swap_ab_sm90.cuh"
#include "kernels/experts/grouped_gemm/tile_launch.cuh"
#include "kernels/experts/grouped_gemm/tiled_sm90.cuh"
#include "kernels/experts/grouped_gemm_gather/gathered_rows.cuh"
#include "kernels/experts/grouped_gemm_gather/grouped_gemm_gather.h"

namespace orrery {
namespace {

using tiles::Arguments;
using tiles::TokenRows;

// `Shared` and `Maps` are those of the tiles that C configures; maps.x is not used.
template <typename C, typename Shared, typename Maps>
__global__ void __launch_bounds__(C::kThreads, 1)
    gathered_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a,
                    const __grid_constant__ TokenRows from) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    tiles::init_barriers(shared.stages, tiles::kGatherFills);
    sm90::prefetch_tensor_map(&maps.w);
    sm90::prefetch_tensor_map(&maps.y);
  }
  __syncthreads();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next may start where a block ends
  if (threadIdx.x < tiles::kGatherThreads) {
    sm90::registers_decrease<56>();
    const auto load = [&](int stage, const typename C::Task& task, int k, int row) {
      sm90::barrier_arrive_expect(&shared.stages.full[stage], w_bytes(shared, task));
      load_w(shared, stage, maps, task, k, row);
    };
    tiles::produce_gathered<C>(shared.stages, shared.x, a, from, load);
  } else {
    sm90::registers_increase<224>();
    consume(shared, maps, a, static_cast<int>(threadIdx.x) / 128 - 1);
  }
}

template <typename C>
CUtensorMap map_of_w(const GroupedGemmShape& shape, const GatheredGemmOperands& operands,
                     int rows) {
  return tiles::map_of<bf16>(operands.w, shape.groups * shape.n, shape.k, rows, C::kK);
}
// Not used where n is no multiple of 8.
CUtensorMap map_of_y(const GroupedGemmShape& shape, const GatheredGemmOperands& operands,
                     int rows) {
  if (shape.n % 8 != 0) return {};
  return tiles::map_of<bf16>(operands.y, shape.max_rows, shape.n, rows, 64);
}

template <typename C, typename Shared, typename Maps>
void launch(const cuda::Stream& stream, const GroupedGemmShape& shape, const Maps& maps,
            int least_rows, const GatheredGemmOperands& operands,
            const GatheredGemmOptions& options) {
  const GroupedGemmOperands rows{
      .counts = operands.counts, .y = operands.y, .x_scale = operands.row_weight};
  constexpr std::int64_t kVector = 8;
  cuda::launch(stream,
               {.grid = dim3(tiles::num_blocks<C>(shape, least_rows, options.free_sms)),
                .block = dim3(C::kThreads),
                .shared_bytes = sizeof(Shared),
                .programmatic = options.programmatic},
               gathered_kernel<C, Shared, Maps>, maps, tiles::arguments_of<C>(shape, {}, rows),
               TokenRows{.x = operands.x,
                         .row_token = operands.row_token,
                         .tokens = static_cast<int>(operands.tokens),
                         .vectors = static_cast<int>(shape.k / kVector)});
}

// As Tile of tiled_sm90.cu and of swap_ab_sm90.cu.
using Tiled = tiled::Config<bf16, TiledChoice{}.rows, TiledChoice{}.columns, 4, 2,
                            TiledChoice{}.block_rows / TiledChoice{}.rows, true>;
using SwapAb = swap_ab::Config<bf16, kSwapAbChoice.rows, kSwapAbChoice.columns / 128, 4, 2,
                               TiledChoice{}.block_rows / kSwapAbChoice.rows, true>;

bool is_aligned(const void* pointer) {
  constexpr std::uintptr_t kAlignment = 16;
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

void require_operands(const GroupedGemmShape& shape, const GatheredGemmOperands& operands) {
  if (!is_aligned(operands.x) || !is_aligned(operands.w) || !is_aligned(operands.y) ||
      operands.row_token == nullptr || operands.counts == nullptr) {
    throw std::invalid_argument(
        "grouped_gemm_gather: x, w and y must be 16-byte aligned, and none of them, row_token or "
        "counts null");
  }
  constexpr std::int64_t kMostVectors = std::numeric_limits<std::uint32_t>::max();
  const std::int64_t tokens = operands.tokens;
  if (tokens < 0 || tokens > std::numeric_limits<std::int32_t>::max() ||
      tokens * (shape.k / 8) >= kMostVectors) {
    throw std::invalid_argument("grouped_gemm_gather: " + std::to_string(tokens) + " tokens of k=" +
                                std::to_string(shape.k) + ", expected less than 2^36 bytes of x");
  }
}

}  // namespace

void require_gathered_gemm_shape(const GroupedGemmShape& shape) {
  if (shape.dtype != DType::kBf16) {
    throw std::invalid_argument(
        "grouped_gemm_gather takes bf16, not " + std::string(to_text(shape.dtype)) +
        "; gather_mul and grouped_gemm take fp8, each row narrowed as it is gathered");
  }
  require_grouped_gemm_shape(shape);
}

void grouped_gemm_gather(const cuda::Stream& stream, const GroupedGemmShape& shape,
                         const TiledChoice& tile, const GatheredGemmOperands& operands,
                         const GatheredGemmOptions& options) {
  require_gathered_gemm_shape(shape);
  if (shape.max_rows == 0 || shape.n == 0) return;
  require_operands(shape, operands);
  if (tile == kSwapAbChoice) {
    const swap_ab::Maps maps{.x = {},
                             .w = map_of_w<SwapAb>(shape, operands, SwapAb::kColumns),
                             .y = map_of_y(shape, operands, swap_ab::kChunk)};
    return launch<SwapAb, swap_ab::Shared<SwapAb>>(stream, shape, maps, 16, operands, options);
  }
  if (tile == TiledChoice{}) {
    const tiled::Maps maps{.x = {},
                           .w = map_of_w<Tiled>(shape, operands, Tiled::kN),
                           .w_part = map_of_w<Tiled>(shape, operands, 64),
                           .y = map_of_y(shape, operands, 64)};
    return launch<Tiled, tiled::Shared<Tiled>>(stream, shape, maps, Tiled::kRows, operands,
                                               options);
  }
  throw std::invalid_argument("grouped_gemm_gather: no tiles of " + std::to_string(tile.rows) +
                              " rows x " + std::to_string(tile.columns) + " columns in blocks of " +
                              std::to_string(tile.block_rows) + " rows are built");
}

}  // namespace orrery

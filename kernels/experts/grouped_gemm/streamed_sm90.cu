#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/grouped_gemm/streamed.h"
#include "kernels/experts/grouped_gemm/streamed_outputs.cuh"
#include "kernels/experts/grouped_gemm/streamed_ring.cuh"
#include "kernels/experts/grouped_gemm/streamed_schedule.cuh"
#include "kernels/experts/grouped_gemm/types.h"

namespace orrery {
namespace {

// y = x w^T for few rows per group is a stream of the active groups' w through the SMs.
// w takes the 64-row side of wgmma, a group's rows of x its narrow side, as wide as they need.
//
//   work items: active groups x blocks of n (x `tokens` rows of x), in this order
//
//     items   | 0 | 1 | 2 | 3 | ... |131|132|133| ...      block 131 takes items 0, 132, ..., block
//     blocks   131 130 129 128        0  131 130           130 items 1, 133, ...
//
//   a last round with few items: each is cut along k among neighbouring blocks; who has its start
//   adds the partial sums that the others leave in the workspace
//
//   one block: 1 producer warp, a warpgroup for each 64 rows of w; a ring of stages, each
//   panels x (rows x 128 bytes of w + tokens x 128 bytes of x); the ring runs on over the items
//
// - Each block finds the active groups from the counts itself; w of others is never asked for.
// - A partial sum is waited for by a block that started after its maker, and its maker waits for
//   nobody: no deadlock, whatever else runs. Added in order of k: deterministic. The flag is taken
//   back by who has waited for it, so that the next launch finds none.
// - Warps are on their own after the MMAs, each with its sums, outputs and flags.
// - x of neighbouring groups comes along; such columns of the MMA are not stored.
//
// Bytes active (n k) e + rows (k e + 2 n), 2 rows n k flops. Measured on an H200 (graph, cold L2):
// bf16 16 groups of 8 rows, w 2048 x 5120 79 us (4.26 TB/s), overlapped 77 us; w 5120 x 1024 41 us;
// 128 groups of 1 row 599 us (4.48 TB/s) and 299 us; fp8 41, 23, 302 and 153 us: HBM binds. Whole
// items in turn are as fast as equal shares of all of k or faster (a share's partial sums cost
// about 2 us); with 64 rows in each of 128 groups they take 677 us, where blocks with items in a
// row take 925 us and x falls out of the L2.

using streamed::ActiveGroup;
using streamed::Arguments;
using streamed::Consumer;
using streamed::kGroupThreads;
using streamed::kMaxConsumerWarps;
using streamed::kPanelBytes;
using streamed::kWarp;
using streamed::kWidths;
using streamed::Maps;
using streamed::Piece;
using streamed::Pieces;
using streamed::Producer;
using streamed::width_index;

constexpr int kMaxPositions = 512;
constexpr int kMaxTileElements = 128 * 64;
constexpr std::size_t kFlagBytes = kMaxPositions * kMaxConsumerWarps * sizeof(std::uint32_t);

// All MMAs of one stage into `sum`, for the 64 rows of w of this warpgroup.
template <typename T, int kTokens, int kRows, int kPanels>
__device__ void multiply(float (&sum)[kTokens / 2], const unsigned char* stage, bool accumulate) {
  constexpr int kStepBytes = 32;  // of k per MMA: 16 bf16 or fp16, 32 fp8
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const std::uint64_t w = sm90::descriptor_128(stage + group * 64 * kPanelBytes);
  const std::uint64_t x = sm90::descriptor_128(stage + kPanels * kRows * kPanelBytes);
  sm90::wgmma_fence();
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (int step = 0; step < kPanelBytes / kStepBytes; ++step) {
      sm90::product_ss<T, kTokens>(sum, w + (panel * kRows * kPanelBytes + step * kStepBytes) / 16,
                                   x + (panel * kTokens * kPanelBytes + step * kStepBytes) / 16,
                                   accumulate || panel > 0 || step > 0);
    }
  }
  sm90::wgmma_commit();
}

// The stages of a piece into `sum`. A stage is released as soon as its MMAs are done: the next may
// not have come yet.
template <typename T, int kTokens, int kRows, int kPanels>
__device__ void consume(Consumer& c, const Piece& piece, float (&sum)[kTokens / 2]) {
  for (int step = 0; step < piece.count; ++step) {
    sm90::barrier_wait(&c.full[c.slot.index], c.slot.parity);
    const unsigned char* stage = c.stages + c.slot.index * c.a.stage_bytes;
    if constexpr (sizeof(T) == 1) {
      // The tensor core keeps about 14 bits of an fp8 sum: stages are added up in fp32.
      float part[kTokens / 2];
      multiply<T, kTokens, kRows, kPanels>(part, stage, false);
      sm90::wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sum[i] += part[i];
    } else {
      multiply<T, kTokens, kRows, kPanels>(sum, stage, true);
      sm90::wgmma_wait<0>();
    }
    if (Consumer::lane() == 0) sm90::barrier_arrive(&c.empty[c.slot.index]);
    c.slot.next(c.a.stages);
  }
}

template <typename T, int kTokens, int kRows, int kPanels>
__device__ void run_piece(Consumer& c, const Piece& piece) {
  const int column = piece.block * kRows + Consumer::warp() * 16;
  float sum[kTokens / 2] = {};
  if constexpr (sizeof(T) == 1) {
    const streamed::Scales<kTokens> scales(c.a, piece, column);
    consume<T, kTokens, kRows, kPanels>(c, piece, sum);
    if (!piece.starts) return streamed::contribute<kTokens>(c, sum);
    if (!piece.ends) streamed::gather<kTokens>(c, sum);
    scales.apply(sum);
  } else {
    consume<T, kTokens, kRows, kPanels>(c, piece, sum);
    if (!piece.starts) return streamed::contribute<kTokens>(c, sum);
    if (!piece.ends) streamed::gather<kTokens>(c, sum);
  }
  streamed::store<GroupedGemmResult<T>, kTokens>(c, piece, column, sum);
}

template <typename T, int kRows, int kPanels>
__global__ void __launch_bounds__(kRows / 64 * kGroupThreads + kWarp)
    streamed_kernel(const __grid_constant__ Maps maps, const Arguments a) {
  constexpr int kConsumers = kRows / 64 * kGroupThreads;
  extern __shared__ __align__(1024) unsigned char stages[];
  auto* table = reinterpret_cast<ActiveGroup*>(stages + a.groups_at);
  auto* full = reinterpret_cast<std::uint64_t*>(stages + a.barriers_at);
  std::uint64_t* empty = full + a.stages;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < a.stages; ++i) {
      sm90::barrier_init(&full[i], 1);
      sm90::barrier_init(&empty[i], kConsumers / kWarp);
    }
    sm90::fence_barrier_init();
  }
  if (thread == kConsumers) {
    sm90::prefetch_tensor_map(&maps.w);
    for (const CUtensorMap& map : maps.x) sm90::prefetch_tensor_map(&map);
  }
  if (!a.overlap) cudaGridDependencySynchronize();
  if (thread >= kConsumers) streamed::list_active(a, table);
  __syncthreads();
  const int active = table[-1].group;
  const Pieces pieces(a, table, active);
  if (thread >= kConsumers) {
    if (thread == kConsumers) Producer<T, kRows, kPanels>{maps, a, stages, full, empty}.run(pieces);
    return;
  }
  cudaGridDependencySynchronize();            // scales of x, partial sums, and who still reads y
  cudaTriggerProgrammaticLaunchCompletion();  // the next may start where there is room
  Pieces next = pieces;
  auto* outputs = reinterpret_cast<GroupedGemmResult<T>*>(stages + a.outputs_at);
  Consumer consumer{.a = a,
                    .pieces = pieces,
                    .stages = stages,
                    .full = full,
                    .empty = empty,
                    .outputs = outputs + (Consumer::warp() * 16 << a.tokens_log2),
                    .slot = {}};
  Piece piece;
  while (next.next(piece)) {
    switch (width_index(piece.tokens)) {
      case 0:
        run_piece<T, kWidths[0], kRows, kPanels>(consumer, piece);
        break;
      case 1:
        run_piece<T, kWidths[1], kRows, kPanels>(consumer, piece);
        break;
      case 2:
        run_piece<T, kWidths[2], kRows, kPanels>(consumer, piece);
        break;
      default:
        run_piece<T, kWidths[3], kRows, kPanels>(consumer, piece);
    }
  }
}

template <typename T>
Maps make_maps(const GroupedGemmShape& shape, const StreamedTile& tile,
               const GroupedGemmOperands& operands) {
  constexpr auto kType = cuda::kMapType<T>;
  constexpr std::uint32_t kPanelK = kPanelBytes / sizeof(T);
  const auto n = static_cast<std::uint64_t>(shape.n);
  const auto k = static_cast<std::uint64_t>(shape.k);
  const std::uint64_t row_bytes = k * sizeof(T);
  Maps maps{};
  maps.w = cuda::tensor_map(kType, operands.w,
                            std::array{k, n, static_cast<std::uint64_t>(shape.groups)},
                            std::array{row_bytes, n * row_bytes},
                            std::array{kPanelK, static_cast<std::uint32_t>(tile.rows), 1u},
                            cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  for (std::size_t i = 0; i < std::size(kWidths); ++i) {
    maps.x[i] = cuda::matrix_map(kType, operands.x, static_cast<std::uint64_t>(shape.max_rows), k,
                                 row_bytes, static_cast<std::uint32_t>(kWidths[i]), kPanelK,
                                 cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  }
  return maps;
}

Arguments make_arguments(const GroupedGemmShape& shape, const StreamedTile& tile,
                         const GroupedGemmOperands& operands, std::byte* workspace, bool overlap) {
  const StreamedLayout layout = streamed_layout(tile, shape.groups);
  const std::int64_t element = shape.dtype == DType::kFp8 ? 1 : 2;
  const std::int64_t stage_k = tile.panels * kPanelBytes / element;
  const auto k_steps = static_cast<int>((shape.k + stage_k - 1) / stage_k);
  return {.counts = operands.counts,
          .y = operands.y,
          .scatter = operands.scatter,
          .x_scale = operands.x_scale,
          .w_scale = operands.w_scale,
          .flags = reinterpret_cast<std::uint32_t*>(workspace),
          .partials = reinterpret_cast<float*>(workspace + kFlagBytes),
          .groups = static_cast<int>(shape.groups),
          .max_rows = static_cast<int>(shape.max_rows),
          .n = static_cast<int>(shape.n),
          .n_blocks = static_cast<int>((shape.n + tile.rows - 1) / tile.rows),
          .k_steps = k_steps,
          .cuts = std::min(tile.cuts, k_steps),
          .tokens_log2 = std::countr_zero(static_cast<unsigned>(tile.tokens)),
          .stages = tile.stages,
          .stage_bytes = layout.stage_bytes,
          .outputs_at = layout.outputs_at,
          .groups_at = layout.groups_at + static_cast<int>(sizeof(ActiveGroup)),
          .barriers_at = layout.barriers_at,
          .overlap = overlap};
}

template <typename T, int kRows, int kPanels>
void launch(const cuda::Stream& stream, const GroupedGemmShape& shape, const StreamedTile& tile,
            const GroupedGemmOperands& operands, std::byte* workspace,
            const StreamedOptions& options) {
  const int sms = cuda::device_properties().multiProcessorCount - options.free_sms;
  const int positions = std::min(sms * tile.blocks_per_sm, kMaxPositions);
  const auto shared_bytes =
      static_cast<std::size_t>(streamed_layout(tile, shape.groups).shared_bytes);
  cuda::launch(stream,
               {.grid = dim3(static_cast<unsigned>(positions)),
                .block = dim3(kRows / 64 * kGroupThreads + kWarp),
                .shared_bytes = shared_bytes,
                .programmatic = options.programmatic || options.overlap},
               streamed_kernel<T, kRows, kPanels>, make_maps<T>(shape, tile, operands),
               make_arguments(shape, tile, operands, workspace, options.overlap));
}

using Launch = decltype(&launch<bf16, 64, 2>);
struct Built {
  int rows;
  int panels;
  Launch bf16_launch;
  Launch fp16_launch;
  Launch fp8_launch;
  [[nodiscard]] Launch launch_of(DType dtype) const {
    if (dtype == DType::kFp8) return fp8_launch;
    return dtype == DType::kFp16 ? fp16_launch : bf16_launch;
  }
};

template <int kRows, int kPanels>
constexpr Built built() {
  return {kRows, kPanels, launch<bf16, kRows, kPanels>, launch<fp16, kRows, kPanels>,
          launch<fp8, kRows, kPanels>};
}

constexpr std::array kBuilt{built<64, 2>(), built<64, 4>(), built<128, 2>()};

// Work items and their cuts are counted in 32 bits.
const Built& require_built(const GroupedGemmShape& shape, const StreamedTile& tile) {
  const auto found = std::ranges::find_if(kBuilt, [&](const Built& built) {
    return built.rows == tile.rows && built.panels == tile.panels;
  });
  const std::int64_t items =
      (shape.max_rows / tile.tokens + shape.groups) * ((shape.n + tile.rows - 1) / tile.rows);
  if (found == kBuilt.end() || std::ranges::find(kWidths, tile.tokens) == std::end(kWidths) ||
      tile.stages < 1 || tile.blocks_per_sm < 1 || tile.blocks_per_sm > 2 || tile.cuts < 1 ||
      items > std::numeric_limits<std::int32_t>::max() - kMaxPositions) {
    throw std::invalid_argument("grouped_gemm: no kernel for " + to_text(GroupedGemmChoice(tile)) +
                                " of " + std::to_string(items) + " work items");
  }
  return *found;
}

}  // namespace

std::size_t streamed_workspace_bytes() {
  const auto positions = static_cast<std::size_t>(
      std::min(2 * cuda::device_properties().multiProcessorCount, kMaxPositions));
  return kFlagBytes + positions * kMaxTileElements * sizeof(float);
}

void grouped_gemm_streamed(const cuda::Stream& stream, const GroupedGemmShape& shape,
                           const StreamedTile& tile, const GroupedGemmOperands& operands,
                           std::byte* workspace, const StreamedOptions& options) {
  require_grouped_gemm_shape(shape);
  const Built& built = require_built(shape, tile);
  if (shape.max_rows == 0 || shape.n == 0) return;
  built.launch_of(shape.dtype)(stream, shape, tile, operands, workspace, options);
}

}  // namespace orrery

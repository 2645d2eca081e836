#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/routing_scores/routing_scores.h"
#include "kernels/experts/routing_scores/row_part_sm90.cuh"

namespace orrery {
namespace {

// A stream of x and w through the tensor cores. A block has 16 to 256 tokens:
//
//   [stage][stage]...   a stage: 64 of hidden, of the tokens and of w     1 producer warp
//   copy engine -> full[i] -> wgmma -> empty[i] -> copy engine            1 to 4 warpgroups
//   logits -> shared memory -> a warp for each row: activation -> scores  all warps
//
// - Few tokens: the blocks of a cluster each take a stretch of hidden, so that up to 16
//   SMs read w for the same tokens. Each adds up the logits of some rows: of tiles of
//   up to 64 rows the others send it theirs, of larger ones it takes them. (H200: to send 128 x 256
//   logits by fragments took 36 us more than to take them; to take few 0.4 to 1.7 us more.)
// - An MMA has 64 rows; where a block has fewer tokens, the rest is what happens to lie there.

constexpr int kWarp = 32;
constexpr int kGroupThreads = 128;
constexpr int kGroupRows = 64;
constexpr int kPanelBytes = 128;
constexpr int kPanelK = 64;
constexpr int kStepBytes = 32;     // of hidden per MMA
constexpr int kMostColumns = 256;  // of an MMA

template <int kAllColumns, int kAllRows>
struct Shape {
  static constexpr int kColumns = kAllColumns;
  static constexpr int kRows = kAllRows;
  static constexpr int kN = kColumns < kMostColumns ? kColumns : kMostColumns;
  static constexpr int kColumnGroups = kColumns / kN;
  static constexpr int kHeldRows = kRows < kGroupRows ? kGroupRows : kRows;  // of a stage
  static constexpr int kConsumers = kHeldRows / kGroupRows * kColumnGroups * kGroupThreads;
  static constexpr int kFetchedBytes = (kRows + kColumns) * kPanelBytes;  // of a stage
  static constexpr int kThreads = kConsumers + kWarp;
  static constexpr bool kIsSent = routing_scores_are_sent(kColumns, kRows);
};

struct Arguments {
  const bf16* bias;
  float* scores;
  const std::int64_t* slots;
  int tokens;
  int experts;
  int steps;  // stages that cover hidden
  int cluster_log2;
  bool is_sigmoid;
  bool is_aligned;  // vectors of scores may be written
  bool overlap;     // w may be read ahead of the kernel before
  RoutingScoresLayout layout;
};

struct Slot {  // of the ring of stages
  int index = 0;
  std::uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// What a block works on.
struct Share {
  int rank;       // in the cluster
  int first_row;  // of x
  int first_expert;
  int experts;
  int first_step;
  int steps;

  __device__ Share(const Arguments& a, int rows, int columns) {
    const int block = static_cast<int>(blockIdx.x);
    rank = block & ((1 << a.cluster_log2) - 1);
    first_row = (block >> a.cluster_log2) * rows;
    first_expert = static_cast<int>(blockIdx.y) * columns;
    experts = min(a.experts - first_expert, columns);
    first_step = a.steps * rank >> a.cluster_log2;
    steps = (a.steps * (rank + 1) >> a.cluster_log2) - first_step;
  }
};

// As begin_dependent, but the next kernel may start at once: it waits for this one, which waits.
__device__ void begin_early() {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
}

// Fills the ring. Where w is known to be there, its first stages are asked for before the kernel
// ahead has ended.
template <typename S>
struct Producer {
  const Arguments& a;
  const Share& share;
  unsigned char* stages;
  std::uint64_t* full;
  std::uint64_t* empty;
  const CUtensorMap* x_map;
  const CUtensorMap* w_map;

  __device__ int k_of(int step) const { return (share.first_step + step) * kPanelK; }
  __device__ void load_x(int slot, int step) const {
    sm90::load_2d(stages + slot * a.layout.stage_bytes, x_map, k_of(step), share.first_row,
                  &full[slot]);
  }
  __device__ void load_w(int slot, int step) const {
    unsigned char* w = stages + slot * a.layout.stage_bytes + S::kHeldRows * kPanelBytes;
    sm90::barrier_arrive_expect(&full[slot], S::kFetchedBytes);
#pragma unroll
    for (int first = 0; first < S::kColumns; first += S::kN) {
      sm90::load_2d(w + first * kPanelBytes, w_map, k_of(step), share.first_expert + first,
                    &full[slot]);
    }
  }
  __device__ void run() const {
    const int ahead = min(share.steps, a.layout.stages);
    if (!a.overlap) begin_early();
    for (int step = 0; step < ahead; ++step) load_w(step, step);
    if (a.overlap) begin_early();
    for (int step = 0; step < ahead; ++step) load_x(step, step);
    Slot slot;
    for (int step = ahead; step < share.steps; ++step) {
      sm90::barrier_wait(&empty[slot.index], slot.parity);
      load_w(slot.index, step);
      load_x(slot.index, step);
      slot.next(a.layout.stages);
    }
  }
};

template <typename S>
__device__ void consume(float (&sum)[S::kN / 2], const Arguments& a, int steps,
                        const unsigned char* stages, std::uint64_t* full, std::uint64_t* empty) {
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int rows_at = group / S::kColumnGroups * kGroupRows * kPanelBytes;
  const int columns_at = (S::kHeldRows + group % S::kColumnGroups * S::kN) * kPanelBytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  Slot slot;
  for (int step = 0; step < steps; ++step) {
    sm90::barrier_wait(&full[slot.index], slot.parity);
    const unsigned char* stage = stages + slot.index * a.layout.stage_bytes;
    const std::uint64_t x = sm90::descriptor_128(stage + rows_at);
    const std::uint64_t w = sm90::descriptor_128(stage + columns_at);
    sm90::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kPanelBytes / kStepBytes; ++i) {
      sm90::Wgmma<S::kN>::template bf16_ss<>(sum, x + i * kStepBytes / 16, w + i * kStepBytes / 16,
                                             true);
    }
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
    if (lane == 0) sm90::barrier_arrive(&empty[slot.index]);
    slot.next(a.layout.stages);
  }
}

// A fragment's logits to shared memory: [row][column] here, in place of stages, from where others
// take them; or [part][row][column] of the block that adds up the row, where they are sent.
template <typename S>
__device__ void store_logits(const float (&sum)[S::kN / 2], const Arguments& a, const Share& share,
                             float* logits) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int first_column = group % S::kColumnGroups * S::kN + thread % 4 * 2;
  const int part_rows = S::kRows >> a.cluster_log2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row =
        group / S::kColumnGroups * kGroupRows + thread / kWarp * 16 + thread % kWarp / 4 + half * 8;
    if (row >= S::kRows || share.first_row + row >= a.tokens) continue;
    float* to = logits + first_column;
    if (S::kIsSent && a.cluster_log2 > 0) {
      const int at = share.rank * part_rows + (row & (part_rows - 1));
      const int block = (row << a.cluster_log2) / S::kRows;
      to = static_cast<float*>(__cluster_map_shared_rank(to + at * a.layout.logits_stride, block));
    } else {
      to += row * a.layout.logits_stride;
    }
#pragma unroll
    for (int j = 0; j < S::kN / 8; ++j) {
      if (first_column + 8 * j < share.experts) {
        *reinterpret_cast<float2*>(to + 8 * j) = {sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]};
      }
    }
  }
}

// Scores of the rows that this block adds up.
template <typename S>
__device__ void activate(const Arguments& a, const Share& share, const float* logits) {
  using Part = RowPart<S::kColumns>;
  const int part_rows = S::kRows >> a.cluster_log2;
  const int first_row = share.rank * part_rows;
  const int rows = min(part_rows, a.tokens - share.first_row - first_row);
  const int lane_row = static_cast<int>(threadIdx.x) % kWarp / Part::kLanes;
  for (int from = static_cast<int>(threadIdx.x) / kWarp * Part::kWarpRows; from < rows;
       from += S::kThreads / kWarp * Part::kWarpRows) {
    const int row = first_row + min(from + lane_row, rows - 1);
    Part part;
#pragma unroll
    for (int i = 0; i < Part::kValues; ++i) {
      const bool has_bias = a.bias != nullptr && Part::column(i) < share.experts;
      part.values[i] =
          has_bias ? __bfloat162float(a.bias[share.first_expert + Part::column(i)]) : 0.0f;
    }
    const int parts = 1 << a.cluster_log2;
    if (S::kIsSent) {
      part.add_own(logits + (row - first_row) * a.layout.logits_stride, parts,
                   part_rows * a.layout.logits_stride);
    } else {
      part.add_remote(logits + row * a.layout.logits_stride, parts);
    }
    if (a.is_sigmoid) {
      part.sigmoid();
    } else {
      part.softmax(share.experts);
    }
    if (from + lane_row >= rows) continue;
    if (a.slots != nullptr && a.slots[share.first_row + row] < 0) part.fill(-INFINITY);
    part.store(a.scores + static_cast<std::int64_t>(share.first_row + row) * a.experts +
                   share.first_expert,
               share.experts, a.is_aligned);
  }
}

template <int kColumns, int kRows>
__global__ void __launch_bounds__(Shape<kColumns, kRows>::kThreads)
    routing_scores_kernel(const __grid_constant__ CUtensorMap x_map,
                          const __grid_constant__ CUtensorMap w_map, const Arguments a) {
  using S = Shape<kColumns, kRows>;
  extern __shared__ __align__(1024) unsigned char stages[];
  auto* full = reinterpret_cast<std::uint64_t*>(stages + a.layout.barriers_at);
  std::uint64_t* empty = full + a.layout.stages;
  auto* logits = reinterpret_cast<float*>(stages + a.layout.logits_at);
  const Share share(a, S::kRows, S::kColumns);
  if (threadIdx.x == S::kConsumers) {
    sm90::prefetch_tensor_map(&x_map);
    sm90::prefetch_tensor_map(&w_map);
    for (int i = 0; i < a.layout.stages; ++i) {
      sm90::barrier_init(&full[i], 1);
      sm90::barrier_init(&empty[i], S::kConsumers / kWarp);
    }
    sm90::fence_barrier_init();
  }
  __syncthreads();
  const bool is_cluster = a.cluster_log2 > 0;
  if (S::kIsSent && is_cluster) sm90::cluster_arrive_relaxed();
  float sum[S::kN / 2] = {};
  if (threadIdx.x >= S::kConsumers) {
    if (threadIdx.x == S::kConsumers) {
      Producer<S>{a, share, stages, full, empty, &x_map, &w_map}.run();
    }
    __syncwarp();
  } else {
    begin_early();
    consume<S>(sum, a, share.steps, stages, full, empty);
  }
  if (S::kIsSent && is_cluster) sm90::cluster_wait();  // all blocks have started
  if (threadIdx.x < S::kConsumers) {
    if (!S::kIsSent) sm90::named_barrier_sync(1, S::kConsumers);  // no MMA reads stages any more
    store_logits<S>(sum, a, share, logits);
  }
  if (is_cluster) {
    sm90::cluster_sync();
  } else {
    __syncthreads();
  }
  activate<S>(a, share, logits);
  if (!S::kIsSent && is_cluster) {
    __syncwarp();
    sm90::cluster_sync();  // the others still read logits here
  }
}

template <int kColumns, int kRows>
void launch(const cuda::Stream& stream, const RoutingScoresOperands& operands,
            const RoutingScoresShape& shape, const RoutingScoresTile& tile, bool overlap) {
  using S = Shape<kColumns, kRows>;
  constexpr auto kType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(shape.hidden) * sizeof(bf16);
  const CUtensorMap x_map =
      cuda::matrix_map(kType, operands.x, shape.tokens, shape.hidden, row_bytes, S::kRows, kPanelK,
                       cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  const CUtensorMap w_map =
      cuda::matrix_map(kType, operands.w, shape.experts_total, shape.hidden, row_bytes, S::kN,
                       kPanelK, cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  const Arguments arguments{
      .bias = operands.bias,
      .scores = operands.scores,
      .slots = operands.slots,
      .tokens = static_cast<int>(shape.tokens),
      .experts = static_cast<int>(shape.experts_total),
      .steps = static_cast<int>((shape.hidden + kPanelK - 1) / kPanelK),
      .cluster_log2 = std::countr_zero(static_cast<unsigned>(tile.cluster)),
      .is_sigmoid = shape.activation == RouterActivation::kSigmoid,
      .is_aligned = shape.experts_total % 4 == 0 &&
                    reinterpret_cast<std::uintptr_t>(operands.scores) % sizeof(float4) == 0,
      .overlap = overlap,
      .layout = routing_scores_layout(kColumns, kRows)};
  const auto row_tiles = static_cast<unsigned>((shape.tokens + kRows - 1) / kRows);
  const auto column_tiles = static_cast<unsigned>((shape.experts_total + kColumns - 1) / kColumns);
  const auto cluster = static_cast<unsigned>(tile.cluster);
  const auto kernel = routing_scores_kernel<kColumns, kRows>;
  constexpr unsigned kPortable = 8;
  if (cluster > kPortable) {
    ORRERY_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cuda::launch(stream,
               {.grid = dim3(row_tiles * cluster, column_tiles),
                .block = dim3(S::kThreads),
                .shared_bytes = static_cast<std::size_t>(arguments.layout.shared_bytes),
                .cluster = cluster,
                .programmatic = true},
               kernel, x_map, w_map, arguments);
}

using Launch = decltype(&launch<16, 64>);

template <int kColumns>
Launch launch_of(int rows) {
  if (rows == 64) return launch<kColumns, 64>;
  if constexpr (kColumns <= 128) {
    if (rows == 16) return launch<kColumns, 16>;
    if (rows == 32) return launch<kColumns, 32>;
  }
  if constexpr (kColumns <= 256) {
    if (rows == 128) return launch<kColumns, 128>;
  }
  if constexpr (kColumns <= 128) {
    if (rows == 256) return launch<kColumns, 256>;
  }
  return nullptr;
}

Launch launch_of(const RoutingScoresTile& tile) {
  switch (tile.columns) {
    case 16:
      return launch_of<16>(tile.rows);
    case 32:
      return launch_of<32>(tile.rows);
    case 64:
      return launch_of<64>(tile.rows);
    case 128:
      return launch_of<128>(tile.rows);
    case 256:
      return launch_of<256>(tile.rows);
    case 512:
      return launch_of<512>(tile.rows);
    default:
      return nullptr;
  }
}

// Whether the tile's blocks cover the shape's experts.
bool is_possible(const RoutingScoresShape& shape, const RoutingScoresTile& tile) {
  return tile.cluster >= 1 && tile.cluster <= 16 &&
         std::has_single_bit(static_cast<unsigned>(tile.cluster)) &&
         (tile.columns >= shape.experts_total || shape.activation == RouterActivation::kSigmoid);
}

}  // namespace

RoutingScoresTile routing_scores_tile(const RoutingScoresShape& shape) {
  require_routing_scores_shape(shape);
  return choose_routing_scores(shape, cuda::most_clusters());
}

void routing_scores(const cuda::Stream& stream, const RoutingScoresOperands& operands,
                    const RoutingScoresShape& shape, const RoutingScoresTile& tile, bool overlap) {
  require_routing_scores_shape(shape);
  const Launch launch = is_possible(shape, tile) ? launch_of(tile) : nullptr;
  if (launch == nullptr) {
    throw std::invalid_argument(
        "routing_scores: a tile of " + std::to_string(tile.rows) + " tokens and " +
        std::to_string(tile.columns) + " experts in clusters of " + std::to_string(tile.cluster) +
        " does not serve " + std::to_string(shape.experts_total) + " experts");
  }
  constexpr std::uintptr_t kAlignment = 16;
  if ((reinterpret_cast<std::uintptr_t>(operands.x) |
       reinterpret_cast<std::uintptr_t>(operands.w)) %
          kAlignment !=
      0) {
    throw std::invalid_argument("routing_scores: x and w must be 16-byte aligned");
  }
  if (shape.tokens > 0) launch(stream, operands, shape, tile, overlap);
}

}  // namespace orrery

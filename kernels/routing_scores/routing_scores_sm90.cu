#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/cuda/clusters.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/routing_scores/routing_scores.h"

namespace orrery {
namespace {

// A stream of x and w through the tensor cores. A block has 16 to 256 tokens:
//
//   [stage][stage]...   a stage: 64 of hidden, of the tokens and of w     1 producer warp
//   copy engine -> full[i] -> wgmma -> empty[i] -> copy engine            1 to 4 warpgroups
//   logits -> shared memory -> a warp for each row: activation -> scores  all warps
//
// - Few tokens: the blocks of a cluster each take a stretch of hidden, so that up to 16
//   multiprocessors read w for the same tokens. Each adds up the logits of some rows, which it
//   reads from the others' shared memory.
//   A product has 64 rows; where a block has fewer tokens, the rest of what it multiplies is what
//   happens to lie there, and its results are left.
// - Many: each block of a cluster has tokens of its own and fetches a part of each stage of w for
//   all of them, since w would otherwise come from the L2 as often as there are blocks.

constexpr int kWarp = 32;
constexpr int kGroupThreads = 128;
constexpr int kGroupRows = 64;
constexpr int kPanelBytes = 128;
constexpr int kPanelK = 64;
constexpr int kStepBytes = 32;     // of hidden per product
constexpr int kMostColumns = 256;  // of a product

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
};

struct Arguments {
  const bf16* bias;
  float* scores;
  int tokens;
  int experts;
  int column_tiles;
  int steps;  // stages that cover hidden
  int cluster;
  bool is_split;
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
    rank = static_cast<int>(blockIdx.x) % a.cluster;
    const int tile = static_cast<int>(blockIdx.x) / (a.is_split ? a.cluster : 1);
    first_row = tile / a.column_tiles * rows;
    first_expert = tile % a.column_tiles * columns;
    experts = min(a.experts - first_expert, columns);
    first_step = a.is_split ? a.steps * rank / a.cluster : 0;
    steps = (a.is_split ? a.steps * (rank + 1) / a.cluster : a.steps) - first_step;
  }
};

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
    if (!a.is_split && a.cluster > 1) {
      constexpr std::uint32_t kOne = 1;
      const int part = S::kColumns / a.cluster * share.rank;
      sm90::load_2d_multicast(w + part * kPanelBytes, w_map, k_of(step), part, &full[slot],
                              static_cast<std::uint16_t>((kOne << a.cluster) - kOne));
      return;
    }
#pragma unroll
    for (int first = 0; first < S::kColumns; first += S::kN) {
      sm90::load_2d(w + first * kPanelBytes, w_map, k_of(step), share.first_expert + first,
                    &full[slot]);
    }
  }
  __device__ void run() const {
    const int ahead = min(share.steps, a.layout.stages);
    if (!a.overlap) begin_dependent();
    for (int step = 0; step < ahead; ++step) load_w(step, step);
    if (a.overlap) begin_dependent();
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
    if (a.is_split || a.cluster == 1) {
      if (lane == 0) sm90::barrier_arrive(&empty[slot.index]);
    } else if (lane < a.cluster) {
      sm90::barrier_arrive_cluster(&empty[slot.index], static_cast<std::uint32_t>(lane));
    }
    slot.next(a.layout.stages);
  }
}

// A fragment's logits to shared memory, in place of stages.
template <typename S>
__device__ void store_logits(const float (&sum)[S::kN / 2], const Arguments& a, float* logits) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int first_column = group % S::kColumnGroups * S::kN + thread % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row =
        group / S::kColumnGroups * kGroupRows + thread / kWarp * 16 + thread % kWarp / 4 + half * 8;
    if (row >= S::kRows) continue;
    float* to = logits + row * a.layout.logits_stride + first_column;
#pragma unroll
    for (int j = 0; j < S::kN / 8; ++j) {
      *reinterpret_cast<float2*>(to + 8 * j) = {sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]};
    }
  }
}

// What a lane holds of a row: four columns of each of its vectors.
template <typename S>
struct RowPart {
  static constexpr int kVector = 4;
  static constexpr int kLanes = S::kColumns / kVector < kWarp ? S::kColumns / kVector : kWarp;
  static constexpr int kVectors = S::kColumns / (kVector * kLanes);
  static constexpr int kValues = kVectors * kVector;
  static constexpr int kWarpRows = kWarp / kLanes;

  float values[kValues];

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  // The column of value `i`.
  static __device__ int column(int i) {
    return (i / kVector * kLanes + lane()) * kVector + i % kVector;
  }
  // Adds up the logits at `row` of all blocks that have a part of them.
  __device__ void gather(const float* row, int parts, int rank) {
    constexpr int kBatch = kVectors >= 4 ? 2 : 8;  // parts on their way together
    for (int first = 0; first < parts; first += kBatch) {
      float4 found[kBatch][kVectors];
#pragma unroll
      for (int part = 0; part < kBatch; ++part) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const auto* from = reinterpret_cast<const float4*>(row + column(i * kVector));
          found[part][i] = {};
          if (first + part >= parts) continue;
          found[part][i] = parts == 1 ? *from : sm90::load_cluster(from, first + part);
        }
      }
#pragma unroll
      for (int part = 0; part < kBatch; ++part) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          values[i * kVector] += found[part][i].x;
          values[i * kVector + 1] += found[part][i].y;
          values[i * kVector + 2] += found[part][i].z;
          values[i * kVector + 3] += found[part][i].w;
        }
      }
    }
  }
  __device__ void sigmoid() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = 1 / (1 + expf(-values[i]));
  }
  __device__ void softmax(int experts) {
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (column(i) >= experts) values[i] = -INFINITY;
      most = fmaxf(most, values[i]);
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, lanes));
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = expf(values[i] - most);
      sum += values[i];
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, lanes);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] /= sum;
  }
  __device__ void store(float* to, int experts, bool aligned) const {
#pragma unroll
    for (int i = 0; i < kValues; i += kVector) {
      if (aligned && column(i) < experts) {
        *reinterpret_cast<float4*>(to + column(i)) = {values[i], values[i + 1], values[i + 2],
                                                      values[i + 3]};
        continue;
      }
#pragma unroll
      for (int j = i; j < i + kVector; ++j) {
        if (column(j) < experts) to[column(j)] = values[j];
      }
    }
  }
};

// Scores of the rows that this block adds up.
template <typename S>
__device__ void activate(const Arguments& a, const Share& share, const float* logits) {
  using Part = RowPart<S>;
  const int parts = a.is_split ? a.cluster : 1;
  const int part_rows = S::kRows / parts;
  const int first_row = parts > 1 ? share.rank * part_rows : 0;
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
    part.gather(logits + row * a.layout.logits_stride, parts, share.rank);
    if (a.is_sigmoid) {
      part.sigmoid();
    } else {
      part.softmax(share.experts);
    }
    if (from + lane_row >= rows) continue;
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
  auto* logits = reinterpret_cast<float*>(stages);
  const Share share(a, S::kRows, S::kColumns);
  const bool is_shared = !a.is_split && a.cluster > 1;
  if (threadIdx.x == S::kConsumers) {
    sm90::prefetch_tensor_map(&x_map);
    sm90::prefetch_tensor_map(&w_map);
    for (int i = 0; i < a.layout.stages; ++i) {
      sm90::barrier_init(&full[i], 1);
      sm90::barrier_init(&empty[i], S::kConsumers / kWarp * (is_shared ? a.cluster : 1));
    }
    sm90::fence_barrier_init();
  }
  if (is_shared) {
    sm90::cluster_sync();
  } else {
    __syncthreads();
  }
  float sum[S::kN / 2] = {};
  if (threadIdx.x >= S::kConsumers) {
    if (threadIdx.x == S::kConsumers) {
      Producer<S>{a, share, stages, full, empty, &x_map, &w_map}.run();
    }
    __syncwarp();
  } else {
    begin_dependent();
    consume<S>(sum, a, share.steps, stages, full, empty);
  }
  const bool is_split = a.is_split && a.cluster > 1;
  if (threadIdx.x < S::kConsumers) {
    sm90::named_barrier_sync(1, S::kConsumers);  // no product reads a stage any more
    store_logits<S>(sum, a, logits);
  }
  if (is_split) {
    sm90::cluster_sync();
  } else {
    __syncthreads();
  }
  activate<S>(a, share, logits);
  if (a.cluster > 1) {
    __syncwarp();
    sm90::cluster_sync();  // the others still read logits or arrive at barriers here
  }
}

template <int kColumns, int kRows>
void launch(const cuda::Stream& stream, const RoutingScoresOperands& operands,
            const RoutingScoresShape& shape, const RoutingScoresTile& tile, bool overlap) {
  using S = Shape<kColumns, kRows>;
  constexpr auto kType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const bool is_shared = !tile.is_split && tile.cluster > 1;
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(shape.hidden) * sizeof(bf16);
  const CUtensorMap x_map =
      cuda::matrix_map(kType, operands.x, shape.tokens, shape.hidden, row_bytes, S::kRows, kPanelK,
                       cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  const CUtensorMap w_map = cuda::matrix_map(
      kType, operands.w, shape.experts_total, shape.hidden, row_bytes,
      static_cast<std::uint32_t>(S::kColumns / (is_shared ? tile.cluster : S::kColumnGroups)),
      kPanelK, cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  const Arguments arguments{
      .bias = operands.bias,
      .scores = operands.scores,
      .tokens = static_cast<int>(shape.tokens),
      .experts = static_cast<int>(shape.experts_total),
      .column_tiles = static_cast<int>((shape.experts_total + kColumns - 1) / kColumns),
      .steps = static_cast<int>((shape.hidden + kPanelK - 1) / kPanelK),
      .cluster = tile.cluster,
      .is_split = tile.is_split,
      .is_sigmoid = shape.activation == RouterActivation::kSigmoid,
      .is_aligned = shape.experts_total % 4 == 0 &&
                    reinterpret_cast<std::uintptr_t>(operands.scores) % sizeof(float4) == 0,
      .overlap = overlap,
      .layout = routing_scores_layout(kColumns, kRows)};
  const auto tiles =
      static_cast<unsigned>((shape.tokens + kRows - 1) / kRows * arguments.column_tiles);
  const auto cluster = static_cast<unsigned>(tile.cluster);
  const unsigned blocks =
      tile.is_split ? tiles * cluster : (tiles + cluster - 1) / cluster * cluster;
  const auto kernel = routing_scores_kernel<kColumns, kRows>;
  constexpr unsigned kPortable = 8;
  if (cluster > kPortable) {
    ORRERY_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  cuda::launch(stream,
               {.grid = dim3(blocks),
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

// Whether the tile's blocks cover the shape's experts, in clusters that can share the work.
bool is_possible(const RoutingScoresShape& shape, const RoutingScoresTile& tile) {
  const bool is_cluster =
      tile.cluster >= 1 && tile.cluster <= 16 && (tile.cluster & (tile.cluster - 1)) == 0;
  if (!is_cluster) return false;
  const bool has_all = tile.columns >= shape.experts_total;
  if (tile.is_split || tile.cluster == 1) {
    return has_all || shape.activation == RouterActivation::kSigmoid;
  }
  const int part = tile.columns / tile.cluster;
  return has_all && part >= 8 && part <= kMostColumns;
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

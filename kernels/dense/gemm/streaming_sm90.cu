#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/dense/gemm/streaming.h"
#include "kernels/dense/gemm/streaming_sm90.cuh"

namespace orrery {
namespace {

// y = x w^T for few tokens is a stream of w through the SMs: the MMAs are free, what counts is that
// every one of them always has enough of w under way. w takes the 64-row side of wgmma, the tokens
// its narrow side (8, 16, 32 or 64).
//
//                    k ->                     one block: 2 producer warps, 1 or 2 warpgroups
//          +------ split 0 -----+- split 1 -+
//   rows   |[stage][stage]...   |           |   stage of w = panels x rows x 128 bytes,
//    of w  |  <- ring of        |  another  |   of x = panels x tokens x 128 bytes: a ring each
//          |     `stages`       |  block of |     copy engine -> full[i] -> wgmma -> empty[i] ->
//          +--------------------+  the same +
//                                  cluster      sums [token][row] in place of the rings; the
//                                               blocks of a cluster add theirs over DSMEM
//
// - Rows per block are chosen (choice.cpp) so that all blocks run at once, each an equal share; w
//   is read once and leaves the L2 first, x comes from the L2 for every row tile.
// - A stage goes back to the copy engine when its own MMAs are done, not when the next stage's
//   are under way: the next may not have come yet, and a stage idle is bandwidth lost.
// - With overlap, w is asked for before the kernels ahead have ended, x after, by a warp of its
//   own. Of w only `window` stages are under way at once though the ring has room for more: x would
//   come behind all of them.
// - The next kernel may start when the last stages are asked for, so that what it asks for comes
//   behind them and fills memory's time while this one adds up and writes.
// - The tensor maps fetch 128 bytes into the L2, not 256: on this pattern 1 to 3 us in 60 faster.
// - The output is a serial tail: threads keep their rows and load several blocks' sums at a time.
//
// Bytes (m k + n k) e + 2 m n, 2 m n k flops. HBM binds, then what is serial from one kernel of a
// chain to the next: its end, x, the last MMAs and sums. Measured on an H200 (graph, cold L2,
// overlapped): bf16 1 x 4096 x 4096 9.0 us (3.75 TB/s), 4 x 2048 x 8192 10.3, 8 x 16384 x
// 2048 16.1, 64 x 8192 x 8192 34.8 us (3.91 TB/s). None of the registers spilled; shared memory
// admits the one or two blocks per SM that the tile asks for.

using streaming::Arguments;
using streaming::Barriers;
using streaming::kGroupThreads;
using streaming::kPanelBytes;
using streaming::kWarp;
using streaming::Shape;
using streaming::Slot;
using streaming::WeightProducer;

template <typename T, int kTokens>
__device__ void mma(float (&sum)[kTokens / 2], std::uint64_t w, std::uint64_t x, bool accumulate) {
  if constexpr (sizeof(T) == 1) {
    sm90::Wgmma<kTokens>::fp8_ss(sum, w, x, accumulate);
  } else {
    sm90::Wgmma<kTokens>::template bf16_ss<>(sum, w, x, accumulate);
  }
}

// All MMAs of one stage into `sum`, committed as one group.
template <typename T, int kTokens, typename Shape>
__device__ void multiply(float (&sum)[Shape::kGroupBlocks][kTokens / 2],
                         const unsigned char* w_stage, const unsigned char* x_stage,
                         const Arguments& a, int first_block, bool accumulate) {
  constexpr int kStepBytes = 32;  // of k per MMA: 16 bf16 or 32 fp8
  const int w_panel = a.rows * kPanelBytes;
  sm90::wgmma_fence();
  for (int panel = 0; panel < a.panels; ++panel) {
    const std::uint64_t x = sm90::descriptor_128(x_stage + panel * Shape::kXPanelBytes);
    const std::uint64_t w =
        sm90::descriptor_128(w_stage + panel * w_panel + first_block * 64 * kPanelBytes);
#pragma unroll
    for (int step = 0; step < kPanelBytes / kStepBytes; ++step) {
#pragma unroll
      for (int block = 0; block < Shape::kGroupBlocks; ++block) {
        mma<T, kTokens>(sum[block], w + (block * 64 * kPanelBytes + step * kStepBytes) / 16,
                        x + step * kStepBytes / 16, accumulate || panel > 0 || step > 0);
      }
    }
  }
  sm90::wgmma_commit();
}

// `steps` stages into `sum`. A stage is released as soon as its MMAs are done: the next may not
// have come yet.
template <typename T, int kTokens, typename Shape>
__device__ void consume(float (&sum)[Shape::kGroupBlocks][kTokens / 2], const unsigned char* stages,
                        const Arguments& a, const Barriers& barriers, int steps) {
  const int first_block = static_cast<int>(threadIdx.x) / kGroupThreads * Shape::kGroupBlocks;
  Slot w;
  Slot x;
  for (int step = 0; step < steps; ++step) {
    sm90::barrier_wait(&barriers.x_full[x.index], x.parity);
    sm90::barrier_wait(&barriers.w_full[w.index], w.parity);
    const unsigned char* w_stage = stages + a.w_at + w.index * a.w_bytes;
    const unsigned char* x_stage = stages + x.index * a.x_bytes;
    if constexpr (sizeof(T) == 1) {
      // The tensor core keeps about 14 bits of an fp8 sum: stages are added up in fp32.
      float part[Shape::kGroupBlocks][kTokens / 2];
      multiply<T, kTokens, Shape>(part, w_stage, x_stage, a, first_block, false);
      sm90::wgmma_wait<0>();
#pragma unroll
      for (int block = 0; block < Shape::kGroupBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sum[block][i] += part[block][i];
      }
    } else {
      multiply<T, kTokens, Shape>(sum, w_stage, x_stage, a, first_block, true);
      sm90::wgmma_wait<0>();
    }
    if (threadIdx.x % kWarp == 0) {
      sm90::barrier_arrive(&barriers.w_empty[w.index]);
      sm90::barrier_arrive(&barriers.x_empty[x.index]);
    }
    w.next(a.stages);
    x.next(a.x_stages);
  }
}

// Accumulators to shared memory as [token][row]. The padding of a token's sums keeps the writes
// free of bank conflicts.
template <int kTokens, typename Shape>
__device__ void scatter(float* sums, const Arguments& a,
                        const float (&sum)[Shape::kGroupBlocks][kTokens / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int row = thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll
  for (int block = 0; block < Shape::kGroupBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = i / 4 * 8 + thread % 4 * 2 + i % 2;
      const int at = (group * Shape::kGroupBlocks + block) * 64 + row + i % 4 / 2 * 8;
      if (at < a.rows && token < a.m) sums[token * a.sum_stride + at] = sum[block][i];
    }
  }
}

__device__ float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

constexpr int kVector = 4;  // rows of w that a thread puts out together

// Where a thread works in the output: its own rows, and tokens at a fixed stride.
template <typename Shape>
struct Share {
  int column;  // of y
  int row;     // of the tile
  int token;
  int tokens;  // from one to the next

  __device__ Share(const Arguments& a, int first_row, int rank) {
    const int thread = static_cast<int>(threadIdx.x);
    const int vectors = a.rows / kVector;
    const int groups = Shape::kThreads / vectors;
    const int group = thread / vectors;
    row = thread % vectors * kVector;
    column = first_row + row;
    token = group < groups && column < a.n ? rank * groups + group : a.m;
    tokens = a.split * groups;
  }
};

__device__ void store(bf16* y, const float (&values)[kVector], int columns, bool aligned) {
  __align__(8) bf16 rounded[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) rounded[i] = __float2bfloat16_rn(values[i]);
  if (aligned) {
    *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(rounded);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < columns) y[i] = rounded[i];
  }
}

// Adds up the cluster's sums and writes y, some tokens and blocks at a time so that their loads
// overlap.
template <typename T, typename Shape>
__device__ void reduce(const float* sums, const float* x_scales, const float (&w_scale)[kVector],
                       const float (&bias)[kVector], const Arguments& a,
                       const Share<Shape>& share) {
  constexpr int kBatch = 2;
  constexpr int kBlocksAtOnce = 4;
  for (int first = share.token; first < a.m; first += kBatch * share.tokens) {
    float4 total[kBatch] = {};
    for (int block = 0; block < a.split; block += kBlocksAtOnce) {
      float4 part[kBlocksAtOnce][kBatch];
#pragma unroll
      for (int j = 0; j < kBlocksAtOnce; ++j) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int token = min(first + i * share.tokens, a.m - 1);
          const auto* at = reinterpret_cast<const float4*>(sums + token * a.sum_stride + share.row);
          part[j][i] = block + j >= a.split ? float4{}
                       : a.split == 1       ? *at
                                            : sm90::load_cluster(at, block + j);
        }
      }
#pragma unroll
      for (int j = 0; j < kBlocksAtOnce; ++j) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) total[i] = total[i] + part[j][i];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int token = first + i * share.tokens;
      if (token >= a.m) break;
      float values[kVector] = {total[i].x, total[i].y, total[i].z, total[i].w};
      if constexpr (sizeof(T) == 1) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[j] *= x_scales[token] * w_scale[j];
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) values[j] += bias[j];
      store(a.y + static_cast<std::int64_t>(token) * a.n + share.column, values, a.n - share.column,
            a.n % kVector == 0);
    }
  }
}

template <typename T, int kTokens, int kBlocks>
__global__ void __launch_bounds__(Shape<T, kTokens, kBlocks>::kThreads)
    streaming_kernel(const __grid_constant__ CUtensorMap w_map,
                     const __grid_constant__ CUtensorMap x_map, const Arguments a) {
  using S = Shape<T, kTokens, kBlocks>;
  constexpr bool kIsScaled = sizeof(T) == 1;
  extern __shared__ __align__(1024) unsigned char stages[];
  const Barriers barriers(a, stages);
  auto* x_scales = reinterpret_cast<float*>(barriers.x_empty + a.x_stages);
  const int rank = static_cast<int>(blockIdx.x) % a.split;
  const int first_row = static_cast<int>(blockIdx.x) / a.split * a.rows;
  streaming::Stretch k{.first = a.k_steps * rank / a.split};
  k.count = a.k_steps * (rank + 1) / a.split - k.first;
  WeightProducer<S> producer{.a = a,
                             .stages = stages,
                             .barriers = barriers,
                             .map = &w_map,
                             .row = first_row,
                             .k = k,
                             .policy = sm90::evict_first()};
  if (threadIdx.x == S::kConsumers) {
    sm90::prefetch_tensor_map(&w_map);
    sm90::prefetch_tensor_map(&x_map);
    for (int i = 0; i < a.stages; ++i) {
      sm90::barrier_init(&barriers.w_full[i], 1);
      sm90::barrier_init(&barriers.w_empty[i], S::kConsumers / kWarp);
    }
    for (int i = 0; i < a.x_stages; ++i) {
      sm90::barrier_init(&barriers.x_full[i], 1);
      sm90::barrier_init(&barriers.x_empty[i], S::kConsumers / kWarp);
    }
    sm90::fence_barrier_init();
    if (a.overlap) producer.start();
  }
  if (!a.overlap) {
    cudaGridDependencySynchronize();
    if (threadIdx.x == S::kConsumers) producer.start();
  }
  __syncthreads();
  const Share<S> share(a, first_row, rank);
  float w_scale[kVector] = {};
  if constexpr (kIsScaled) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (share.column + i < a.n) w_scale[i] = a.w_scale[(share.column + i) * a.scale_step];
    }
  }
  float bias[kVector] = {};
  if (a.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (share.column + i < a.n) bias[i] = __bfloat162float(a.bias[share.column + i]);
    }
  }
  auto* sums = reinterpret_cast<float*>(stages);
  if (threadIdx.x / kWarp >= S::kConsumers / kWarp) {
    if (threadIdx.x == S::kConsumers) producer.run();
    if (threadIdx.x == S::kConsumers + kWarp) {
      streaming::load_x<S>(a, stages, barriers, &x_map, k);
    }
    __syncwarp();
  } else {
    cudaGridDependencySynchronize();  // scales of x, and who still reads y
    const int thread = static_cast<int>(threadIdx.x);
    if (kIsScaled && thread < a.m) x_scales[thread] = a.x_scale[thread * a.scale_step];
    float sum[S::kGroupBlocks][kTokens / 2] = {};
    consume<T, kTokens, S>(sum, stages, a, barriers, k.count);
    sm90::named_barrier_sync(1, S::kConsumers);  // no MMA reads a stage any more
    scatter<kTokens, S>(sums, a, sum);
  }
  if (a.split == 1) {
    __syncthreads();
  } else {
    sm90::cluster_sync();
  }
  reduce<T>(sums, x_scales, w_scale, bias, a, share);
  if (a.split > 1) {
    __syncwarp();
    sm90::cluster_sync();  // the others still read here
  }
}

template <typename T, int kTokens, int kBlocks>
void launch(const cuda::Stream& stream, const GemmShape& shape, const StreamingTile& tile,
            const GemmOperands& operands, const StreamingOptions& options) {
  using S = Shape<T, kTokens, kBlocks>;
  constexpr auto kType =
      sizeof(T) == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const std::uint64_t row_bytes = shape.k * sizeof(T);
  const CUtensorMap w_map =
      cuda::matrix_map(kType, operands.w, shape.n, shape.k, row_bytes, tile.rows, S::kPanelK,
                       cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  const CUtensorMap x_map =
      cuda::matrix_map(kType, operands.x, shape.m, shape.k, row_bytes, kTokens, S::kPanelK,
                       cuda::Swizzle::k128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  const int stage_k = S::kPanelK * tile.panels;
  const StreamingLayout layout = streaming_layout(tile);
  const Arguments arguments{.y = operands.y,
                            .x_scale = operands.x_scale,
                            .w_scale = operands.w_scale,
                            .bias = operands.bias,
                            .scale_step = shape.scaling == Fp8Scaling::kRowwise ? 1 : 0,
                            .m = static_cast<int>(shape.m),
                            .n = static_cast<int>(shape.n),
                            .rows = tile.rows,
                            .panels = tile.panels,
                            .k_steps = static_cast<int>((shape.k + stage_k - 1) / stage_k),
                            .split = tile.split,
                            .stages = tile.stages,
                            .window = tile.window,
                            .x_stages = tile.x_stages,
                            .w_bytes = layout.w_bytes,
                            .x_bytes = layout.x_bytes,
                            .w_at = layout.w_at,
                            .sum_stride = layout.sum_stride,
                            .barriers_at = layout.barriers_at,
                            .overlap = options.overlap};
  const auto row_tiles = static_cast<unsigned>((shape.n + tile.rows - 1) / tile.rows);
  cuda::launch(stream,
               {.grid = dim3(row_tiles * tile.split),
                .block = dim3(S::kThreads),
                .shared_bytes = static_cast<std::size_t>(layout.shared_bytes),
                .cluster = static_cast<unsigned>(tile.split),
                .programmatic = true},
               streaming_kernel<T, kTokens, kBlocks>, w_map, x_map, arguments);
}

using Launch = decltype(&launch<bf16, 8, 1>);
struct Built {
  int tokens;
  int blocks;
  Launch bf16_launch;
  Launch fp8_launch;
};

template <int kTokens, int kBlocks>
constexpr Built built() {
  return {kTokens, kBlocks, launch<bf16, kTokens, kBlocks>, launch<fp8, kTokens, kBlocks>};
}

constexpr std::array kBuilt{built<8, 1>(),  built<8, 2>(),  built<8, 3>(),  built<8, 4>(),
                            built<16, 1>(), built<16, 2>(), built<16, 3>(), built<16, 4>(),
                            built<32, 1>(), built<32, 2>(), built<32, 3>(), built<32, 4>(),
                            built<64, 1>(), built<64, 2>(), built<64, 3>(), built<64, 4>()};

}  // namespace

void streaming_gemm(const cuda::Stream& stream, const GemmShape& shape, const StreamingTile& tile,
                    const GemmOperands& operands, const StreamingOptions& options) {
  require_gemm_shape(shape);
  if (!streaming_takes(shape)) {
    throw std::invalid_argument("streaming_gemm: m=" + std::to_string(shape.m) +
                                " k=" + std::to_string(shape.k) +
                                "; m from 1 to 64, rows of x and w a multiple of 16 bytes long");
  }
  if (shape.n == 0) return;
  const auto built = std::ranges::find_if(kBuilt, [&](const Built& one) {
    return one.tokens == tile.tokens && one.blocks == (tile.rows + 63) / 64;
  });
  constexpr int kSwizzleRows = 8;
  if (built == kBuilt.end() || tile.tokens < shape.m || tile.rows % kSwizzleRows != 0 ||
      tile.split < 1 || tile.split > kStreamingMaxSplit || tile.stages < 1 || tile.window < 1 ||
      tile.window > tile.stages || tile.x_stages < 1 || tile.panels < 1) {
    throw std::invalid_argument("streaming_gemm: no kernel for " +
                                to_text(GemmChoice{.tile = tile}));
  }
  const Launch launch_built = shape.dtype == DType::kFp8 ? built->fp8_launch : built->bf16_launch;
  launch_built(stream, shape, tile, operands, options);
}

}  // namespace orrery

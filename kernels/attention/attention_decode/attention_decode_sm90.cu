#include <array>
#include <bit>
#include <stdexcept>
#include <string>

#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_decode/cursor.cuh"
#include "kernels/attention/attention_decode/feeder.cuh"
#include "kernels/attention/attention_decode/merge.cuh"
#include "kernels/attention/attention_decode/parameters.cuh"
#include "kernels/attention/attention_decode/tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tensor_map.h"

namespace orrery {
namespace {

using namespace decode;

constexpr int kThreads = kWarps * 32;

template <int kHeadDim, int kHeadTiles>
struct Shared {
  static constexpr int kStages = 2;
  static constexpr int kRowFloats = kHeadDim + 4;  // no bank conflicts between heads
  char keys[kWarps][kStages][kTileBytes];          // 1,024-byte aligned: the swizzle's period
  char values[kWarps][kStages][kTileBytes];
  float acc[kWarps][8 * kHeadTiles][kRowFloats];
  float2 stats[kWarps][8 * kHeadTiles];  // max, sum
  std::uint64_t keys_full[kWarps][kStages];
  std::uint64_t values_full[kWarps][kStages];
  StretchScratch scratch;
  bool is_last;
};

// The block's warps' softmaxes over a row become its outputs, or a partial result where other
// blocks share it.
template <typename T, int kHeadDim, int kHeadTiles>
__device__ void finish_row(Shared<kHeadDim, kHeadTiles>& shared, const Parameters& parameters,
                           const Cursor& row, WarpSoftmax<T, kHeadDim, kHeadTiles>& softmax) {
  constexpr int kPerLane = kHeadDim / 32;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  softmax.finish();
#pragma unroll
  for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 8 * n + 2 * (lane % 4) + i % 2;
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        shared.acc[warp][head][softmax.dim_of(d, i)] = softmax.acc[n][d][i];
      }
      if (lane < 4 && i < 2) {
        shared.stats[warp][head] = make_float2(softmax.max[n][i], softmax.sum[n][i]);
      }
    }
  }
  __syncthreads();
  const int kv_heads = parameters.split.heads_per_block;
  const int heads = kv_heads * parameters.ratio;
  const bool whole = row.is_whole();
  for (int head = warp; head < heads; head += kWarps) {
    const int kv_head = head / parameters.ratio;
    const int tile_row = head % parameters.ratio;
    const auto has_head = [&](int w) { return w % kv_heads == kv_head; };
    const int source = lane % kWarps;
    const float2 stats =
        has_head(source) ? shared.stats[source][tile_row] : make_float2(-INFINITY, 0);
    HeadPart<kPerLane> part{.acc = {}, .max = stats.x, .sum = 0};
#pragma unroll
    for (int distance = 1; distance < kWarps; distance *= 2) {
      part.max = fmaxf(part.max, __shfl_xor_sync(0xFFFFFFFF, part.max, distance));
    }
    const float weight = exp2f(stats.x - part.max);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      part.sum += __shfl_sync(0xFFFFFFFF, weight * stats.y, w);
      const float of_warp = __shfl_sync(0xFFFFFFFF, weight, w);
      if (!has_head(w)) continue;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        part.acc[i] += of_warp * shared.acc[w][tile_row][lane * kPerLane + i];
      }
    }
    if (whole) {
      write_output(parameters.output, row.seq(), row.group() * heads + head, part);
    } else {
      const int slot = slot_of(row.first_block(), static_cast<int>(blockIdx.x));
      write_partial(parameters.workspace, heads, slot, head, part);
    }
  }
  if (whole) {
    __syncthreads();  // the next row writes shared.acc
  } else {
    merge_row<kPerLane>(parameters.workspace, parameters.output, row, heads, shared.is_last);
  }
}

// Sequences without keys.
template <int kHeadDim>
__device__ void write_empty(const Parameters& parameters) {
  const Output& output = parameters.output;
  for (int seq = static_cast<int>(blockIdx.x); seq < parameters.work.seqs;
       seq += static_cast<int>(gridDim.x)) {
    if (__ldg(parameters.work.context_lens + seq) > 0) continue;
    const std::int64_t first = static_cast<std::int64_t>(seq) * output.heads;
    for (int i = threadIdx.x; i < output.heads * kHeadDim; i += kThreads) {
      output.out[first * kHeadDim + i] = __float2bfloat16_rn(0);
    }
    for (int i = threadIdx.x; output.lse && i < output.heads; i += kThreads) {
      output.lse[first + i] = -INFINITY;
    }
  }
}

// Reads the part of the block table that this block needs if all contexts are equal, so that it is
// on its way while the lengths are: the look-up that follows finds it in the cache.
__device__ std::int32_t guess_block_table(const Parameters& parameters) {
  const int rows = parameters.work.seqs * parameters.work.groups;
  const int blocks = static_cast<int>(gridDim.x);
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * rows;
  const int row = static_cast<int>(at / blocks);
  const std::int64_t entries = parameters.blocks_per_sequence;
  const std::int64_t first = at % blocks * entries / blocks;
  const std::int64_t lane_entry = min(first + threadIdx.x % 32, entries - 1);
  std::int32_t entry;
  asm volatile("ld.global.nc.b32 %0, [%1];"
               : "=r"(entry)
               : "l"(parameters.block_table + row / parameters.work.groups * entries + lane_entry));
  return entry;
}

// One launch, one block of 8 warps per SM, each with an even stretch of all units of keys and
// values (split.h), found from the lengths on the device. A unit is 4 KB of keys and 4 KB of values
// of one kv head. Every warp works alone on its own ring of units, so that nothing but the end of a
// row synchronises warps:
//
//   warp    copy engine                     MMAs (tile.cuh)
//           K0 V0 K1 V1 ------------------> S = K0 Q, refill K2, softmax, O += V0 P, refill V2, ...
//   row     warps -> shared memory -> output, or -> workspace -> last block of the row (merge.cuh)
//
// 128 KB in flight per SM, about three times what 4.4 TB/s at 1 us need; the work on a
// unit is a fifth of the time in which it arrives (bf16). Bytes: keys and values once, 2 seqs
// context kv_heads head_dim; 2 ratio flops per byte in bf16.
//
// On one H200, cold, beside cuDNN's attention over a contiguous cache (PyTorch 2.11), 32 query and
// 8 kv heads of 128 unless stated, us (TB/s of keys and values):
//   batch x context            bf16            cuDNN    fp8
//     1 x 8192                  15.3            15.4     12.6
//    64 x 2048                 123.4 (4.35)    122.6     66.9 (4.01)
//   128 x 4096, 64 heads       473.5 (4.54)    470.0    249.1 (4.31)
//   256 x 8192                1869.8 (4.59)   1856.6    965.2 (4.45)
// Queries in rows of a fused projection cost nothing: 64 x 4096, bf16, 246.1 us, contiguous 246.3.
// Large caches are bound by memory, small ones by latency: lengths, block table and first tiles
// come one after the other from cold memory, about 4 us until the rings are full, and the merges of
// warps and blocks take 3 to 4 us after the last MMA. What helped at 128 x 4096: L2 fetches of
// 128 bytes (of 256 they took in the head beside it as well: 4.07 -> 4.25 TB/s) and queries and
// block table asked for before the rings fill, with rows that blocks do not share (-> 4.54 TB/s).
template <typename T, int kHeadDim, int kHeadTiles>
__global__ void __launch_bounds__(kThreads, 1)
    decode_kernel(const __grid_constant__ CUtensorMap keys_map,
                  const __grid_constant__ CUtensorMap values_map,
                  const __grid_constant__ Parameters parameters) {
  using Tile = TileShape<T, kHeadDim>;
  using Memory = Shared<kHeadDim, kHeadTiles>;
  extern __shared__ __align__(1024) char shared_bytes[];
  Memory& shared = *reinterpret_cast<Memory*>(shared_bytes);
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) {
    sm90::prefetch_tensor_map(&keys_map);
    sm90::prefetch_tensor_map(&values_map);
    for (int stage = 0; stage < Memory::kStages; ++stage) {
      sm90::barrier_init(&shared.keys_full[warp][stage], 1);
      sm90::barrier_init(&shared.values_full[warp][stage], 1);
    }
    sm90::fence_barrier_init();
  }
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const std::int32_t guess = guess_block_table(parameters);
  const Stretch stretch = find_stretch(parameters.work, parameters.split, shared.scratch);
  Cursor row(parameters.work, stretch);
  WarpSoftmax<T, kHeadDim, kHeadTiles> softmax;
  const int kv_heads = parameters.split.heads_per_block;
  const auto load_queries = [&] {
    const std::int64_t kv_head = row.group() * kv_heads + warp % kv_heads;
    const std::int64_t first =
        row.seq() * parameters.q_stride + kv_head * parameters.ratio * kHeadDim;
    softmax.load(parameters.q + first, parameters.ratio);
  };
  if (!row.done()) load_queries();
  Feeder feeder(parameters, row, &keys_map, &values_map);
  for (int stage = 0; stage < Memory::kStages; ++stage) {
    feeder.copy_keys(shared.keys[warp][stage], &shared.keys_full[warp][stage]);
    feeder.copy_values(shared.values[warp][stage], &shared.values_full[warp][stage]);
    feeder.next();
  }
  asm volatile("" ::"r"(guess));
  write_empty<kHeadDim>(parameters);

  int stage = 0;
  std::uint32_t parity = 0;
  while (!row.done()) {
    softmax.start(parameters.scale_log2);
    const int end = row.end_unit();
    for (int unit = row.begin_unit() + warp / kv_heads; unit < end; unit += kWarps / kv_heads) {
      const int first_seen = row.first_key() - unit * Tile::kKeys;
      const int end_seen = row.context() - unit * Tile::kKeys;
      const bool is_edge = first_seen > 0 || end_seen < Tile::kKeys;
      float scores[Tile::kKeyTiles][kHeadTiles][4];
      std::uint32_t weights[Tile::kKeyTiles][kHeadTiles][2];
      sm90::barrier_wait(&shared.keys_full[warp][stage], parity);
      softmax.score(shared.keys[warp][stage], scores);
      __syncwarp();
      feeder.copy_keys(shared.keys[warp][stage], &shared.keys_full[warp][stage]);
      if (is_edge) mask<T, kHeadDim, kHeadTiles>(scores, first_seen, end_seen);
      softmax.weigh(scores, weights);
      sm90::barrier_wait(&shared.values_full[warp][stage], parity);
      if (is_edge) zero_unseen<T, kHeadDim>(shared.values[warp][stage], first_seen, end_seen);
      softmax.accumulate(shared.values[warp][stage], weights);
      __syncwarp();
      feeder.copy_values(shared.values[warp][stage], &shared.values_full[warp][stage]);
      feeder.next();
      if (++stage == Memory::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    finish_row(shared, parameters, row, softmax);
    row.next();
    if (!row.done()) load_queries();
  }
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("attention_decode: " + what);
}

// As [blocks, kv heads, halves of a row, tokens, elements of a half]: a box is one head's keys with
// each half's rows together.
template <typename T, int kHeadDim>
CUtensorMap cache_map(const PagedKv<const T>& cache, const T* data, int kv_heads) {
  using Tile = TileShape<T, kHeadDim>;
  constexpr std::uint64_t kHeadBytes = kHeadDim * sizeof(T);
  const auto block_size = static_cast<std::uint64_t>(cache.block_size);
  const auto heads = static_cast<std::uint64_t>(kv_heads);
  const std::array<std::uint64_t, 5> sizes{Tile::kHalfDims, block_size, Tile::kHalves, heads,
                                           static_cast<std::uint64_t>(cache.num_blocks)};
  const std::array<std::uint64_t, 4> strides{heads * kHeadBytes, Tile::kRowBytes, kHeadBytes,
                                             block_size * heads * kHeadBytes};
  const auto box_keys = static_cast<std::uint32_t>(std::min(cache.block_size, Tile::kKeys));
  const std::array<std::uint32_t, 5> box{Tile::kHalfDims, box_keys, Tile::kHalves, 1, 1};
  constexpr auto kType =
      kIsFp8<T> ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return cuda::tensor_map(kType, data, sizes, strides, box,
                          Tile::kRowBytes == 128 ? cuda::Swizzle::k128 : cuda::Swizzle::k64,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

template <typename T, int kHeadDim, int kHeadTiles>
void launch_kernel(const cuda::Stream& stream, const PagedKv<const T>& cache, int kv_heads,
                   Parameters parameters) {
  using Tile = TileShape<T, kHeadDim>;
  parameters.work.keys = Tile::kKeys;
  parameters.box_keys = std::min(cache.block_size, Tile::kKeys);
  parameters.boxes = Tile::kKeys / parameters.box_keys;
  parameters.head_bytes = kHeadDim * sizeof(bf16);
  const auto blocks = static_cast<unsigned>(parameters.split.blocks);
  cuda::launch(stream,
               {.grid = dim3(blocks),
                .block = dim3(kThreads),
                .shared_bytes = sizeof(Shared<kHeadDim, kHeadTiles>),
                .programmatic = parameters.split.starts_early},
               decode_kernel<T, kHeadDim, kHeadTiles>,
               cache_map<T, kHeadDim>(cache, cache.keys, kv_heads),
               cache_map<T, kHeadDim>(cache, cache.values, kv_heads), parameters);
}

Workspace lay_out(void* workspace, const AttentionDecodeSplit& split, int heads_per_slot) {
  const std::size_t slots = static_cast<std::size_t>(split.blocks) * 2;
  auto* const counters = static_cast<std::uint32_t*>(workspace);
  auto* const stats = reinterpret_cast<float2*>(counters + 2 * slots);
  return {.group_arrivals = counters,
          .row_arrivals = counters + slots,
          .stats = stats,
          .acc = reinterpret_cast<float*>(stats + slots * heads_per_slot)};
}

}  // namespace

template <typename T>
void attention_decode(const cuda::Stream& stream, const AttentionDecodeOutput& output,
                      const bf16* q, const PagedKv<const T>& cache,
                      const std::int32_t* context_lens, const AttentionDecodeShape& shape,
                      float scale, const AttentionDecodeSplit& split, void* workspace) {
  if (shape.seqs == 0) return;
  // Refuses shapes that the kernel does not take.
  static_cast<void>(attention_decode_split(shape, sizeof(T), split.blocks));
  require(cache.block_size >= 16 && cache.block_size <= 128 &&
              std::has_single_bit(static_cast<unsigned>(cache.block_size)),
          "block_size " + std::to_string(cache.block_size) + "; takes 16, 32, 64 and 128");
  require(split.blocks >= 1 && split.blocks <= kFanIn * kFanIn && split.min_units >= 1 &&
              split.heads_per_block >= 1 && kWarps % split.heads_per_block == 0 &&
              shape.kv_heads % split.heads_per_block == 0,
          "a split that is not one of attention_decode_split() for this shape");
  for (const void* pointer :
       {static_cast<const void*>(output.out), static_cast<const void*>(q),
        static_cast<const void*>(cache.keys), static_cast<const void*>(cache.values),
        static_cast<const void*>(workspace)}) {
    require(reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0,
            "pointers must be 16-byte aligned");
  }
  require(scale > 0, "scale " + std::to_string(scale) + "; takes positive ones");
  const int ratio = shape.heads / shape.kv_heads;
  constexpr float kLog2E = 1.44269504088896f;
  const Parameters parameters{
      .work = {.context_lens = context_lens,
               .seqs = shape.seqs,
               .groups = shape.kv_heads / split.heads_per_block,
               .window = shape.window},
      .split = split,
      .workspace = lay_out(workspace, split, split.heads_per_block * ratio),
      .output = {.out = output.out,
                 .lse = output.lse,
                 .value_scale = cache.value_scale,
                 .heads = shape.heads},
      .q = q,
      .q_stride = shape.q_stride == 0 ? std::int64_t{shape.heads} * shape.head_dim : shape.q_stride,
      .block_table = cache.block_table,
      .blocks_per_sequence = cache.blocks_per_sequence,
      .block_shift = std::countr_zero(static_cast<unsigned>(cache.block_size)),
      .ratio = ratio,
      .scale_log2 = scale * cache.key_scale * kLog2E};
  const auto run = [&]<int kHeadDim>() {
    if (ratio <= 8) {
      launch_kernel<T, kHeadDim, 1>(stream, cache, shape.kv_heads, parameters);
    } else {
      launch_kernel<T, kHeadDim, 2>(stream, cache, shape.kv_heads, parameters);
    }
  };
  if (shape.head_dim == 64) {
    run.template operator()<64>();
  } else {
    run.template operator()<128>();
  }
}

template void attention_decode(const cuda::Stream&, const AttentionDecodeOutput&, const bf16*,
                               const PagedKv<const bf16>&, const std::int32_t*,
                               const AttentionDecodeShape&, float, const AttentionDecodeSplit&,
                               void*);
template void attention_decode(const cuda::Stream&, const AttentionDecodeOutput&, const bf16*,
                               const PagedKv<const fp8>&, const std::int32_t*,
                               const AttentionDecodeShape&, float, const AttentionDecodeSplit&,
                               void*);

}  // namespace orrery

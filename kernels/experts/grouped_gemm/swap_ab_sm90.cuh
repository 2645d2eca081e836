#pragma once

// grouped_gemm for sm_90a in tiles as wide as a group has rows.
//
// As tiled_sm90.cuh (one block per SM through all tiles, a warp that copies, two warpgroups that
// multiply), but with A and B swapped: rows of w are the 64 rows of an MMA, rows of x its width,
// which is any multiple of 16 from 128 to 160:
//
//   warpgroup 0   columns   0 to 127 of y    d[2][64, width] += w x^T ... | y |
//   warpgroup 1   columns 128 to 255 of y    d[2][64, width] += w x^T ... | y |
//
// A group's rows are divided evenly among as few tiles as hold them: a group of 130 rows takes one
// tile of 144, where tiles of 128 rows would take two. What is multiplied past a group's end is not
// written. The epilogue turns y back in shared memory, which costs 1 to 2 us a tile more than that
// of tiled_sm90.cuh.
//
// What did not pay on an H200, 128 groups of 128 rows, n x k = 2048 x 5120 and 5120 x 1024:
//   * w of two steps copied together: 9 to 23 % slower; each tile beginning at another k: up to
//     31 % slower: blocks that share rows of x must copy them at about the same time;
//   * x kept in the L2 cache by a policy: 1 % either way;
//   * tiles of up to 192 rows in 3 stages: 2 to 10 % slower;
//   * tiles of 128 columns with up to 256 rows: as fast to 14 % slower, but 9 % faster where ragged
//     groups meet k = 1024 in fp8;
//   * y written by each warp on its own, in pieces of 32 bytes, and tiles that go to the block
//     that is free first: 7 % faster (skewed groups, bf16, k = 5120) to 4 % slower (k = 1024).

#include <cstdint>

#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/grouped_gemm/results.cuh"
#include "kernels/experts/grouped_gemm/tile_pipeline.cuh"
#include "kernels/experts/grouped_gemm/tile_sizes.h"
#include "kernels/experts/grouped_gemm/tiled_choice.h"
#include "kernels/experts/grouped_gemm/types.h"

namespace orrery::swap_ab {

using tiles::Arguments;
using tiles::release;
using tiles::width_for;

// A tile of one block; group < 0 ends the kernel.
struct Task {
  int row;     // first, of x and y
  int rows;    // that are written: at most `width`
  int width;   // of the MMAs: a width that width_for gives
  int column;  // first, of y
  int group;
};

// What one instance of the kernel is compiled for.
template <typename T_, int kRows_, int kBlocks_, int kStages_, int kBuffers_,
          int kBlockTiles_ = TiledChoice{}.block_rows / kRows_, bool kGathers_ = false>
struct Config {
  using T = T_;
  static constexpr int kRows = kRows_;            // of x in a tile, at most
  static constexpr int kBlocks = kBlocks_;        // of 64 columns of y, per warpgroup
  static constexpr int kStages = kStages_;        // in the ring of copies
  static constexpr int kBuffers = kBuffers_;      // of 32 rows x 64 columns of y, per warpgroup
  static constexpr int kColumns = 128 * kBlocks;  // of y in a tile
  static constexpr int kK = 128 / sizeof(T);      // of a stage
  static constexpr std::uint32_t kXBytes = kRows * 128;
  static constexpr std::uint32_t kWBytes = kColumns * 128;
  static constexpr int kThreads = 384;
  static constexpr bool kGathers = kGathers_;             // rows of x (gathered_rows.cuh)
  static constexpr bool kScalesColumns = sizeof(T) == 1;  // by what is in shared memory
  static constexpr bool kScalesRows = kScalesColumns || kGathers;
  static_assert(kRows % 32 == 0 && kRows <= 160 && kBlocks <= 2);

  using Task = swap_ab::Task;
  static constexpr int kBlockTiles = kBlockTiles_;
  static constexpr tiles::PartCosts kParts = tiles::kSwapAbParts;
  __device__ static int tile_rows(int rows) { return tiles::even_tile_rows(rows, kRows); }
  // Of x, that a tile takes if rows are gathered.
  __device__ static int copied_rows(const Task& task) { return task.width; }
  __device__ static bool has_rows(const Task& task) { return task.rows > 0; }
  // Parts are of fewer rows.
  __device__ static Task task(const tiles::Place& place, int tile_rows, int part, int parts) {
    const int width = parts == 1 ? tile_rows : width_for((tile_rows + parts - 1) / parts);
    return {.row = place.row + part * width,
            .rows = min(min(tile_rows, place.rows) - part * width, width),
            .width = width,
            .column = place.column,
            .group = place.group};
  }
};

struct Maps {
  CUtensorMap x[4];  // boxes of 16, 32, 64 and 128 rows
  CUtensorMap w;     // boxes of kColumns rows
  CUtensorMap y;     // boxes of 32 rows of 64 columns
};

inline constexpr int kChunk = 32;  // rows of y that go through a buffer

template <typename C>
struct Shared {
  alignas(1024) unsigned char w[C::kStages][C::kWBytes];
  alignas(1024) unsigned char x[C::kStages][C::kXBytes];
  alignas(1024) unsigned char y[2][C::kBuffers][kChunk * 128];
  float x_scale[2][C::kScalesRows ? C::kRows : 1];  // of each warpgroup's tile
  float w_scale[2][C::kScalesColumns ? 64 * C::kBlocks : 1];
  tiles::Stages<C> stages;
};

// Copies what of w one step of a tile takes into a stage that is empty.
template <typename C>
__device__ void load_w(Shared<C>& shared, int stage, const Maps& maps, const Task& /*task*/, int k,
                       int w_row) {
  sm90::load_2d(shared.w[stage], &maps.w, k, w_row, &shared.stages.full[stage]);
}
// The bytes of it.
template <typename C>
__device__ std::uint32_t w_bytes(const Shared<C>& /*shared*/, const Task& /*task*/) {
  return C::kWBytes;
}

// Likewise x and w.
template <typename C>
__device__ void load_stage(Shared<C>& shared, int stage, const Maps& maps, const Task& task, int k,
                           int w_row) {
  std::uint64_t* const full = &shared.stages.full[stage];
  sm90::barrier_arrive_expect(full, w_bytes(shared, task) + task.width * 128);
  load_w<C>(shared, stage, maps, task, k, w_row);
  int row = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    const int box = 16 << i;
    if (task.width - row >= box) {
      sm90::load_2d(shared.x[stage] + row * 128, &maps.x[i], k, task.row + row, full);
      row += box;
    }
  }
}

// --- consumers: two warpgroups -----------------------------------------------------------------

// Of 64 kBlocks columns and kWidth rows of y, per warpgroup.
template <typename C, int kWidth>
using Sums = float[C::kBlocks][kWidth / 2];

// d[columns, kWidth] (+)= w x^T over one stage, issued and committed.
template <typename C, int kWidth>
__device__ __forceinline__ void issue(Sums<C, kWidth>& d, const Shared<C>& shared, int stage,
                                      int group, bool accumulate) {
  const std::uint64_t w_base =
      sm90::descriptor_128(shared.w[stage] + group * C::kBlocks * 64 * 128);
  const std::uint64_t x_base = sm90::descriptor_128(shared.x[stage]);
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 32 bytes of k each
#pragma unroll
    for (int block = 0; block < C::kBlocks; ++block) {
      constexpr int kBlockAddress = 64 * 128 / 16;
      const std::uint64_t w = w_base + block * kBlockAddress + 2 * step;
      sm90::product_ss<typename C::T, kWidth>(d[block], w, x_base + 2 * step,
                                              step > 0 || accumulate);
    }
  }
  sm90::wgmma_commit();
}

struct Nothing {
  __device__ void operator()(int /*step*/) const {}
};

// All steps of a tile. The first stage is full. meanwhile(step) while products are under way.
template <typename C, int kWidth, typename Meanwhile = Nothing>
__device__ __forceinline__ void multiply(Sums<C, kWidth>& d, Shared<C>& shared,
                                         Ring<C::kStages>& ring, int k_steps, int group,
                                         Meanwhile meanwhile = {}) {
  tiles::see_copies<C>();
  sm90::wgmma_fence();
  issue<C, kWidth>(d, shared, ring.stage, group, false);
  int last = ring.stage;
  ring.advance();
  for (int step = 1; step < k_steps; ++step) {
    sm90::barrier_wait(&shared.stages.full[ring.stage], ring.phase);
    tiles::see_copies<C>();
    sm90::wgmma_fence();
    issue<C, kWidth>(d, shared, ring.stage, group, true);
    meanwhile(step);
    sm90::wgmma_wait<1>();
    release(shared.stages, last);
    last = ring.stage;
    ring.advance();
  }
  sm90::wgmma_wait<0>();
#pragma unroll
  for (int block = 0; block < C::kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) asm volatile("" : "+f"(d[block][i])::"memory");
  }
  release(shared.stages, last);
}

// What this thread brings to the others of its warpgroup: of its columns (64 kBlocks) and rows.
struct Scales {
  float w;
  float x[2];
};
template <typename C>
__device__ Scales load_scales(const Arguments& a, const Task& task) {
  const int thread = threadIdx.x % 128;
  Scales scales{};
  if constexpr (C::kScalesColumns) {
    if (thread < 64 * C::kBlocks && task.column + thread < a.n) {
      scales.w = a.w_scale[static_cast<std::int64_t>(task.group) * a.n + task.column + thread];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread + 128 * half;
    if (row < task.rows) scales.x[half] = tiles::row_scale<C>(a, task.row + row);
  }
  return scales;
}
template <typename C>
__device__ void share_scales(Shared<C>& shared, const Scales& scales, int group) {
  const int thread = threadIdx.x % 128;
  if constexpr (C::kScalesColumns) {
    if (thread < 64 * C::kBlocks) shared.w_scale[group][thread] = scales.w;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread + 128 * half;
    if (row < C::kRows) shared.x_scale[group][row] = scales.x[half];
  }
}

// As sm90::store_matrix_x4, each matrix transposed: a lane's address is that of column l % 8 of
// matrix l / 8, 8 elements long.
__device__ inline void store_transposed(void* shared, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   sm90::shared_address(shared)),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// kChunk rows of 64 columns of y, from row kChunk `chunk` on, transposed into a buffer: rows of 128
// bytes, their 16-byte pieces swizzled.
template <typename C, int kWidth>
__device__ __forceinline__ void fill_buffer(unsigned char* buffer, const float (&d)[kWidth / 2],
                                            int chunk, const float* x_scales,
                                            const float* w_scales) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  // Where the lane's row of its 8 x 8 matrix goes: matrices in turn by 8 columns, then by 8 rows.
  const int row = lane / 16 * 8 + lane % 8;
  unsigned char* const at = buffer + row * 128 + (((2 * warp + lane / 8 % 2) ^ (row % 8)) * 16);
#pragma unroll
  for (int j = 0; j < kChunk / 8; j += 2) {
    if (chunk * kChunk + 8 * j >= kWidth) break;
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pair = 4 * (chunk * (kChunk / 8) + j + i / 2) + 2 * (i % 2);
      float low = d[pair];
      float high = d[pair + 1];
      if constexpr (C::kScalesRows) {
        const float2 x = *reinterpret_cast<const float2*>(x_scales + chunk * kChunk +
                                                          8 * (j + i / 2) + lane % 4 * 2);
        if constexpr (C::kScalesColumns) {
          const float w = w_scales[16 * warp + lane / 4 + 8 * (i % 2)];
          low *= x.x * w;
          high *= x.y * w;
        } else {
          low *= x.x;
          high *= x.y;
        }
      }
      words[i] = rounded_pair<GroupedGemmResult<typename C::T>>(low, high);
    }
    store_transposed(at + j * 8 * 128, words);
  }
}

// y of a warpgroup, of the first kBlocks of its blocks of 64 columns, 32 rows at a time through its
// buffers: whole blocks of 32 rows by the copy engine, which drops columns past n.
template <typename C, int kWidth, int kBlocks = C::kBlocks>
__device__ __forceinline__ void write_tile(const Sums<C, kWidth>& d, Shared<C>& shared,
                                           const Maps& maps, const Arguments& a, const Task& task,
                                           const Scales& scales, int group, int& buffer_index) {
  const int thread = threadIdx.x % 128;
  const bool takes_copies = a.target.out == nullptr && a.n % 8 == 0;
  if constexpr (C::kScalesRows) share_scales<C>(shared, scales, group);
#pragma unroll
  for (int chunk = 0; chunk < (kWidth + kChunk - 1) / kChunk; ++chunk) {
    const int rows = task.rows - chunk * kChunk;
    if (rows <= 0) break;
    const bool is_copied = takes_copies && rows >= kChunk;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int column = task.column + 64 * block;
      if (column < a.n) {
        unsigned char* const buffer = shared.y[group][buffer_index];
        if (thread == 0) sm90::store_wait_read<C::kBuffers - 1>();
        sm90::named_barrier_sync(1 + group, 128);
        fill_buffer<C, kWidth>(buffer, d[block], chunk, shared.x_scale[group],
                               shared.w_scale[group] + 64 * block);
        if (is_copied) sm90::fence_async_shared();
        sm90::named_barrier_sync(1 + group, 128);
        const int row = task.row + chunk * kChunk;
        if (!is_copied) tiles::write_vectors<kChunk>(buffer, a, row, rows, column);
        if (thread == 0) {  // an empty group where nothing is copied: groups count buffers
          if (is_copied) sm90::store_2d(&maps.y, buffer, column, row);
          sm90::store_commit();
        }
        buffer_index = buffer_index + 1 == C::kBuffers ? 0 : buffer_index + 1;
      }
    }
  }
}

template <typename C, int kWidth>
__device__ __forceinline__ void consume_tile(Shared<C>& shared, Ring<C::kStages>& ring,
                                             const Maps& maps, const Arguments& a, const Task& task,
                                             int group, int& buffer_index) {
  if constexpr (kWidth <= C::kRows) {
    Sums<C, kWidth> d;
    Scales scales{};
    if constexpr (C::kScalesRows) scales = load_scales<C>(a, task);
    multiply<C, kWidth>(d, shared, ring, a.k_steps, group);
    write_tile<C, kWidth>(d, shared, maps, a, task, scales, group, buffer_index);
  }
}

template <typename C>
__device__ __forceinline__ void consume(Shared<C>& shared, const Maps& maps, const Arguments& a,
                                        int group) {
  Ring<C::kStages> ring;
  int buffer_index = 0;
  while (true) {
    sm90::barrier_wait(&shared.stages.full[ring.stage], ring.phase);
    Task task = shared.stages.task[ring.stage];
    if (task.group < 0) break;
    task.column += group * C::kBlocks * 64;
    if (task.column >= a.n) {
      tiles::skip(shared.stages, ring, a.k_steps);
      continue;
    }
    const auto in_width = [&]<int kWidth>() {
      consume_tile<C, kWidth>(shared, ring, maps, a, task, group, buffer_index);
    };
    switch (task.width) {
      case 16:
        in_width.template operator()<16>();
        break;
      case 32:
        in_width.template operator()<32>();
        break;
      case 64:
        in_width.template operator()<64>();
        break;
      case 96:
        in_width.template operator()<96>();
        break;
      case 128:
        in_width.template operator()<128>();
        break;
      case 144:
        in_width.template operator()<144>();
        break;
      default:
        in_width.template operator()<160>();
    }
  }
  if (threadIdx.x % 128 == 0) sm90::store_wait<0>();
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    swap_ab_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(memory);
  if (threadIdx.x == 0) {
    tiles::init_barriers(shared.stages);
    for (const CUtensorMap& map : maps.x) sm90::prefetch_tensor_map(&map);
    sm90::prefetch_tensor_map(&maps.w);
    if (a.target.out == nullptr) sm90::prefetch_tensor_map(&maps.y);
  }
  __syncthreads();
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();  // the next may start where a block ends
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    const auto load = [&](int stage, const Task& task, int k, int w_row) {
      load_stage<C>(shared, stage, maps, task, k, w_row);
    };
    if (threadIdx.x < 32) tiles::produce(shared.stages, a, load);
  } else {
    sm90::registers_increase<232>();
    consume<C>(shared, maps, a, static_cast<int>(threadIdx.x) / 128 - 1);
  }
}

}  // namespace orrery::swap_ab

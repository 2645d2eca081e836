#pragma once

// grouped_gemm in tiles for sm_90a.
//
// One block per SM goes through the tiles of all groups: group by group, in a group by blocks of
// rows, in those by columns of w, rows fastest, so that blocks that run together share w and x in
// the L2 cache and a w is read once. The sizes of the groups are in device memory; a warp finds its
// next tile by a scan over 32 groups at a time, and a group without rows costs nothing. That warp
// copies x and w, 128 bytes of k at a time; two warpgroups multiply:
//
//   copies        x w | x w | x w | ...  of this tile and, behind it, of the next
//   warpgroup 0   rows  0 to 63    d[64, n] += x w^T ... | y |
//   warpgroup 1   rows 64 to 127   d[64, n] += x w^T ... | y |
//
// Rows past a group's end are copied, multiplied and not written. The tiles that do not fill the
// last round of the SMs are cut by columns where that ends earlier (16 groups with rows as 1 /
// rank: 4 % of the time at n = 2048, k = 5120).
//
// What did not pay on an H200, n x k = 2048 x 5120 and 5120 x 1024, groups x rows = 16 x 1024 and
// 128 x 128, against tiles of 128 x 256 in 4 stages:
//   * L2 policies of the copies of w: evict_first 10 % slower, evict_normal 6 to 8 % (without one,
//     a miss fetches the 256 bytes that the map asks for);
//   * w brought to the L2 cache 256 to 1,024 bytes of k at a time, one to two such stretches before
//     it is copied: 20 to 75 % slower with 128 groups, 2 to 9 % with 16;
//   * clusters of two that share x by multicast: 1 to 3 % slower, w: 10 % and more;
//   * 3 stages and more buffers for y: 1 % slower; one warpgroup some steps behind the other, so
//     that it multiplies while the other writes: nothing;
//   * tiles of 128 x 128: 3 to 6 % slower, 64 x 256: 1 to 15 %; 2 % faster where 128 x 128 rows
//     meet k = 1024, but 5 to 10 % slower there when the rows are uneven.

#include <cstdint>

#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/experts/grouped_gemm/results.cuh"
#include "kernels/experts/grouped_gemm/tile_pipeline.cuh"
#include "kernels/experts/grouped_gemm/tile_sizes.h"
#include "kernels/experts/grouped_gemm/tiled_choice.h"
#include "kernels/experts/grouped_gemm/types.h"

namespace orrery::tiled {

using tiles::Arguments;
using tiles::release;

// A tile of one block; group < 0 ends the kernel.
struct Task {
  int row;     // first, of x and y
  int rows;    // that the group has from there on, also past the tile
  int column;  // first, of y
  int columns;
  int group;
};

// What one instance of the kernel is compiled for.
template <typename T_, int kM_, int kN_, int kStages_, int kBuffers_,
          int kBlockTiles_ = TiledChoice{}.block_rows / kM_, bool kGathers_ = false>
struct Config {
  using T = T_;
  static constexpr int kM = kM_;              // rows of a tile: 64 for each of two warpgroups
  static constexpr int kN = kN_;              // columns of a tile
  static constexpr int kStages = kStages_;    // in the ring of copies
  static constexpr int kBuffers = kBuffers_;  // of 64 rows x 64 columns of y, per warpgroup
  static_assert(kM == 128 && (kN == 128 || kN == 256));
  static constexpr int kMaxParts = kN / 64;   // of columns, into which the last tiles may be cut
  static constexpr int kK = 128 / sizeof(T);  // of a stage
  static constexpr std::uint32_t kXBytes = kM * 128;
  static constexpr std::uint32_t kWBytes = kN * 128;
  static constexpr int kThreads = 384;
  static constexpr bool kGathers = kGathers_;  // rows of x (gathered_rows.cuh)
  static constexpr bool kScalesColumns = sizeof(T) == 1;
  static constexpr bool kScalesRows = kScalesColumns || kGathers;

  using Task = tiled::Task;
  static constexpr int kRows = kM;
  static constexpr int kColumns = kN;
  static constexpr int kBlockTiles = kBlockTiles_;
  static constexpr tiles::PartCosts kParts = {
      .half = tiles::kTiledParts.half, .quarter = kMaxParts >= 4 ? tiles::kTiledParts.quarter : 0};
  __device__ static constexpr int tile_rows(int /*rows*/) { return kM; }
  // Of x, that a tile takes if rows are gathered.
  __device__ static constexpr int copied_rows(const Task& /*task*/) { return kM; }
  __device__ static constexpr bool has_rows(const Task& /*task*/) { return true; }
  // Parts are of fewer columns.
  __device__ static Task task(const tiles::Place& place, int /*tile_rows*/, int part, int parts) {
    return {.row = place.row,
            .rows = place.rows,
            .column = place.column + part * (kN / parts),
            .columns = kN / parts,
            .group = place.group};
  }
};

struct Maps {
  CUtensorMap x;       // boxes of kM rows
  CUtensorMap w;       // boxes of kN rows
  CUtensorMap w_part;  // boxes of 64 rows
  CUtensorMap y;       // boxes of 64 rows of 64 columns
};

template <typename C>
struct Shared {
  alignas(1024) unsigned char x[C::kStages][C::kXBytes];
  alignas(1024) unsigned char w[C::kStages][C::kWBytes];
  alignas(1024) unsigned char y[2][C::kBuffers][64 * 128];
  float w_scale[2][C::kN];
  tiles::Stages<C> stages;
};

// Copies what of w one step of a tile takes into a stage that is empty.
template <typename C>
__device__ void load_w(Shared<C>& shared, int stage, const Maps& maps, const Task& task, int k,
                       int w_row) {
  std::uint64_t* const full = &shared.stages.full[stage];
  if (task.columns == C::kN) {
    sm90::load_2d(shared.w[stage], &maps.w, k, w_row, full);
  } else {
    for (int row = 0; row < task.columns; row += 64) {
      sm90::load_2d(shared.w[stage] + row * 128, &maps.w_part, k, w_row + row, full);
    }
  }
}
// The bytes of it.
template <typename C>
__device__ std::uint32_t w_bytes(const Shared<C>& /*shared*/, const Task& task) {
  return task.columns * 128;
}

// Likewise x and w.
template <typename C>
__device__ void load_stage(Shared<C>& shared, int stage, const Maps& maps, const Task& task, int k,
                           int w_row) {
  std::uint64_t* const full = &shared.stages.full[stage];
  sm90::barrier_arrive_expect(full, C::kXBytes + w_bytes(shared, task));
  sm90::load_2d(shared.x[stage], &maps.x, k, task.row, full);
  load_w<C>(shared, stage, maps, task, k, w_row);
}

// --- consumers: two warpgroups -----------------------------------------------------------------

// d[64, kColumns] (+)= x w^T over one stage, issued and committed.
template <typename C, int kColumns>
__device__ void issue(float (&d)[kColumns / 2], const Shared<C>& shared, int stage, int group,
                      bool accumulate) {
  const std::uint64_t x_base = sm90::descriptor_128(shared.x[stage] + group * 64 * 128);
  const std::uint64_t w_base = sm90::descriptor_128(shared.w[stage]);
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 32 bytes of k each
    sm90::product_ss<typename C::T, kColumns>(d, x_base + 2 * step, w_base + 2 * step,
                                              step > 0 || accumulate);
  }
  sm90::wgmma_commit();
}

// All steps of a tile or a part of one. The first stage is full.
template <typename C, int kColumns>
__device__ void multiply(float (&d)[kColumns / 2], Shared<C>& shared, Ring<C::kStages>& ring,
                         int k_steps, int group) {
  tiles::see_copies<C>();
  sm90::wgmma_fence();
  issue<C, kColumns>(d, shared, ring.stage, group, false);
  int last = ring.stage;
  ring.advance();
  for (int step = 1; step < k_steps; ++step) {
    sm90::barrier_wait(&shared.stages.full[ring.stage], ring.phase);
    tiles::see_copies<C>();
    sm90::wgmma_fence();
    issue<C, kColumns>(d, shared, ring.stage, group, true);
    sm90::wgmma_wait<1>();
    release(shared.stages, last);
    last = ring.stage;
    ring.advance();
  }
  sm90::wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) asm volatile("" : "+f"(d[i])::"memory");
  release(shared.stages, last);
}

// Rows and columns that a warpgroup writes.
struct Part {
  int row;
  int rows;  // at most 64 count
  int column;
};

struct Scales {
  float x[2];  // of this thread's two rows
  float w[2];  // of two columns, to be shared with the others
};
template <typename C, int kColumns>
__device__ Scales load_scales(const Arguments& a, const Part& part, int w_group) {
  const int thread = threadIdx.x % 128;
  Scales scales{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    if (row < part.rows) scales.x[half] = tiles::row_scale<C>(a, part.row + row);
    if constexpr (C::kScalesColumns) {
      const int column = part.column + thread + 128 * half;
      if (thread + 128 * half < kColumns && column < a.n) {
        scales.w[half] = a.w_scale[static_cast<std::int64_t>(w_group) * a.n + column];
      }
    }
  }
  return scales;
}

// y of a warpgroup, 64 columns at a time through its buffers: whole blocks of 64 rows by the copy
// engine, which drops columns past n.
template <typename C, int kColumns>
__device__ void write_part(const float (&d)[kColumns / 2], Shared<C>& shared, const Maps& maps,
                           const Arguments& a, const Part& part, const Scales& scales, int group,
                           int& buffer_index) {
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const bool is_whole = part.rows >= 64 && a.target.out == nullptr && a.n % 8 == 0;
  if constexpr (C::kScalesColumns) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (thread + 128 * half < kColumns)
        shared.w_scale[group][thread + 128 * half] = scales.w[half];
    }
  }
  // Where the lane's row of its 8 x 8 matrix lies: rows in turn by 8, columns by 16 bytes.
  const int row = thread / 32 * 16 + lane % 16;
  const float* const w_scales = shared.w_scale[group] + lane % 4 * 2;
#pragma unroll
  for (int panel = 0; panel < kColumns / 64; ++panel) {
    const int column = part.column + 64 * panel;
    if (column < a.n) {
      unsigned char* const buffer = shared.y[group][buffer_index];
      if (thread == 0) sm90::store_wait_read<C::kBuffers - 1>();
      sm90::named_barrier_sync(1 + group, 128);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // rows 0 to 7 and 8 to 15 of two groups of 8 columns
          const int at = 4 * (8 * panel + j + i / 2) + 2 * (i % 2);
          float low = d[at];
          float high = d[at + 1];
          if constexpr (C::kScalesColumns) {
            const float2 w =
                *reinterpret_cast<const float2*>(w_scales + 8 * (8 * panel + j + i / 2));
            low *= scales.x[i % 2] * w.x;
            high *= scales.x[i % 2] * w.y;
          } else if constexpr (C::kScalesRows) {
            low *= scales.x[i % 2];
            high *= scales.x[i % 2];
          }
          words[i] = rounded_pair<GroupedGemmResult<typename C::T>>(low, high);
        }
        sm90::store_matrix_x4(buffer + row * 128 + (((j + lane / 16) ^ (row % 8)) * 16), words[0],
                              words[1], words[2], words[3]);
      }
      if (is_whole) sm90::fence_async_shared();
      sm90::named_barrier_sync(1 + group, 128);
      if (!is_whole) tiles::write_vectors<64>(buffer, a, part.row, part.rows, column);
      if (thread == 0) {  // an empty group where nothing is copied: groups count buffers
        if (is_whole) sm90::store_2d(&maps.y, buffer, column, part.row);
        sm90::store_commit();
      }
      buffer_index = buffer_index + 1 == C::kBuffers ? 0 : buffer_index + 1;
    }
  }
}

template <typename C, int kColumns>
__device__ void consume_part(Shared<C>& shared, Ring<C::kStages>& ring, const Maps& maps,
                             const Arguments& a, const Part& part, int w_group, int group,
                             int& buffer_index) {
  float d[kColumns / 2];
  Scales scales{};
  if constexpr (C::kScalesRows) scales = load_scales<C, kColumns>(a, part, w_group);
  multiply<C, kColumns>(d, shared, ring, a.k_steps, group);
  write_part<C, kColumns>(d, shared, maps, a, part, scales, group, buffer_index);
}

template <typename C>
__device__ void consume(Shared<C>& shared, const Maps& maps, const Arguments& a, int group) {
  Ring<C::kStages> ring;
  int buffer_index = 0;
  while (true) {
    sm90::barrier_wait(&shared.stages.full[ring.stage], ring.phase);
    const Task task = shared.stages.task[ring.stage];
    if (task.group < 0) break;
    const Part part{task.row + 64 * group, task.rows - 64 * group, task.column};
    if (part.rows <= 0 || part.column >= a.n) {
      tiles::skip(shared.stages, ring, a.k_steps);
    } else if (task.columns == C::kN) {
      consume_part<C, C::kN>(shared, ring, maps, a, part, task.group, group, buffer_index);
    } else if (task.columns == C::kN / 2) {
      consume_part<C, C::kN / 2>(shared, ring, maps, a, part, task.group, group, buffer_index);
    } else if constexpr (C::kMaxParts >= 4) {
      consume_part<C, C::kN / 4>(shared, ring, maps, a, part, task.group, group, buffer_index);
    }
  }
  if (threadIdx.x % 128 == 0) sm90::store_wait<0>();
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    tiled_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(memory);
  if (threadIdx.x == 0) {
    tiles::init_barriers(shared.stages);
    sm90::prefetch_tensor_map(&maps.x);
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

}  // namespace orrery::tiled

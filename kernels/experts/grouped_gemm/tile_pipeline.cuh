#pragma once

// How a block of a tiled grouped gemm passes on what it copies: a warp fills a ring of stages with
// x and w, two warpgroups multiply what is in them and write y.

#include <cstdint>

#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/experts/grouped_gemm/scatter.cuh"
#include "kernels/experts/grouped_gemm/tile_schedule.cuh"

namespace orrery::tiles {

// The part of a block's shared memory that says what is in the stages.
template <typename C>
struct Stages {
  typename C::Task task[C::kStages];  // of the tile whose first step the stage holds
  std::uint64_t full[C::kStages];
  std::uint64_t empty[C::kStages];
};

// By one thread, before any other uses the barriers; so many arrivals fill a stage.
template <typename C>
__device__ void init_barriers(Stages<C>& stages, int fills = 1) {
  constexpr int kReleases = 8;  // one per warp that multiplies
  for (int i = 0; i < C::kStages; ++i) {
    sm90::barrier_init(&stages.full[i], fills);
    sm90::barrier_init(&stages.empty[i], kReleases);
  }
  sm90::fence_barrier_init();
}

// One warp: every step of the block's tiles into the next stage that is empty, by
// load(stage, task, first k, first row of w), and a task of group -1 after them.
template <typename C, typename Load>
__device__ void produce(Stages<C>& stages, const Arguments& a, const Load& load) {
  const bool is_copier = threadIdx.x % 32 == 0;
  const int blocks = static_cast<int>(gridDim.x);
  Ring<C::kStages> ring;
  Schedule<C> schedule(a, blocks);
  typename C::Task task;
  for (int index = static_cast<int>(blockIdx.x); schedule.find(index, task); index += blocks) {
    if (is_copier && C::has_rows(task)) {
      const int w_row = task.group * a.n + task.column;
#pragma unroll 1
      for (int step = 0; step < a.k_steps; ++step) {
        sm90::barrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
        if (step == 0) stages.task[ring.stage] = task;
        load(ring.stage, task, step * C::kK, w_row);
        ring.advance();
      }
    }
    __syncwarp();
  }
  if (is_copier) {
    sm90::barrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
    stages.task[ring.stage].group = -1;
    sm90::barrier_arrive(&stages.full[ring.stage]);
  }
}

// Orders rows that threads have copied into a full stage before the products that read them; what
// the copy engine has brought needs no order.
template <typename C>
__device__ void see_copies() {
  if constexpr (C::kGathers) sm90::fence_async_shared();
}

// What row `row` of y is multiplied by: the scale of fp8, or its weight, if gathered rows have any.
template <typename C>
__device__ float row_scale(const Arguments& a, int row) {
  if constexpr (C::kGathers) {
    if (a.x_scale == nullptr) return 1;
  }
  return a.x_scale[row];
}

// By each warp that multiplies, when it has read the stage.
template <typename C>
__device__ void release(Stages<C>& stages, int stage) {
  if (threadIdx.x % 32 == 0) sm90::barrier_arrive(&stages.empty[stage]);
}

// All steps of a tile, none of them read.
template <typename C>
__device__ void skip(Stages<C>& stages, Ring<C::kStages>& ring, int k_steps) {
  for (int step = 0; step < k_steps; ++step) {
    if (step > 0) sm90::barrier_wait(&stages.full[ring.stage], ring.phase);
    release(stages, ring.stage);
    ring.advance();
  }
}

// y or the scatter's sums of what is in `buffer`: kRows rows of 128 swizzled bytes, of which the
// first `rows` are rows of y from first_row on.
template <int kRows>
__device__ inline void write_vectors(const unsigned char* buffer, const Arguments& a, int first_row,
                                     int rows, int column) {
  const int thread = threadIdx.x % 128;
  const int vector = thread % 8;
  if (column + 8 * vector >= a.n) return;
#pragma unroll
  for (int row = thread / 8; row < kRows; row += 16) {
    if (row >= rows) break;
    const uint4 y =
        *reinterpret_cast<const uint4*>(buffer + row * 128 + ((vector ^ (row % 8)) * 16));
    bf16* const out = a.y + static_cast<std::int64_t>(first_row + row) * a.n + column + 8 * vector;
    if (a.target.out != nullptr) {
      scatter_vector(a.target, scatter_row(a.target, first_row + row, a.n), column + 8 * vector, y);
    } else if (a.n % 8 == 0) {
      store(out, y);
    } else {
      const std::uint32_t words[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (column + 8 * vector + i < a.n) {
          out[i] = __ushort_as_bfloat16(
              static_cast<unsigned short>(words[i / 2] >> (i % 2 == 0 ? 0 : 16)));
        }
      }
    }
  }
}

}  // namespace orrery::tiles

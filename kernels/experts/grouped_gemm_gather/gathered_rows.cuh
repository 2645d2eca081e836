#pragma once

// How a tile of a grouped gemm gets rows of x from where their tokens have them: four warps copy
// them, 16 bytes at a time, into the stages that the copy engine fills with w.
//
//   threads 8 r to 8 r + 7   128 bytes of row r, r + 16, ...   each copies, then arrives
//   thread 0                 besides, w by the copy engine     arrives once more
//
// Rows lie in a stage as a tensor map with the 128-byte swizzle would put them: of row r, piece p
// of 16 bytes at r * 128 + (p ^ r % 8) * 16. Which token a row is of is looked up once a tile,
// before its first stage is waited for; from then on a thread keeps where its rows begin.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/experts/grouped_gemm/tile_pipeline.cuh"
#include "kernels/experts/grouped_gemm/tile_schedule.cuh"

namespace orrery::tiles {

inline constexpr int kGatherThreads = 128;
// That fill a stage.
inline constexpr int kGatherFills = kGatherThreads + 1;

struct TokenRows {
  const bf16* x = nullptr;                  // [tokens, k], 16-byte aligned
  const std::int32_t* row_token = nullptr;  // [rows]
  int tokens = 0;
  int vectors = 0;  // of 16 bytes in a row; tokens times as many are fewer than 2^32
};

// What a thread copies of a tile's rows.
template <typename C>
class RowCopies {
 public:
  __device__ explicit RowCopies(const TokenRows& from) : from_(from) {}

  // Of a tile of `copied` rows, of which the first `rows` are rows of y from `first` on: the others
  // are zeros, and those of tokens that are not there.
  __device__ void begin(int first, int rows, int copied) {
    copied_ = copied;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = static_cast<int>(threadIdx.x) / 8 + kStride * i;
      const std::int32_t token = row < rows ? from_.row_token[first + row] : -1;
      const bool is_there =
          static_cast<std::uint32_t>(token) < static_cast<std::uint32_t>(from_.tokens);
      begins_[i] = is_there ? static_cast<std::uint32_t>(token) * from_.vectors + piece() : kNone;
    }
  }

  // 128 bytes of each row, of those from step 128 on, to `x`; zeros past the end of a row.
  __device__ void copy(unsigned char* x, int step) const {
    const int row = static_cast<int>(threadIdx.x) / 8;
    const std::uint32_t to =
        sm90::shared_address(x) + row * 128 + ((piece() ^ static_cast<unsigned>(row % 8)) * 16);
    const bool is_inside = 8 * step + static_cast<int>(piece()) < from_.vectors;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (kStride * i >= copied_) break;
      const bool is_there = is_inside && begins_[i] != kNone;
      const std::uint64_t vector = is_there ? begins_[i] + 8 * step : 0;
      sm90::copy_16(to + i * kStride * 128,
                    reinterpret_cast<const unsigned char*>(from_.x) + 16 * vector,
                    is_there ? 16 : 0);
    }
  }

 private:
  static constexpr int kStride = kGatherThreads / 8;  // rows from one of a thread's to its next
  static constexpr int kRows = C::kRows / kStride;
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;

  __device__ static unsigned piece() { return threadIdx.x % 8; }

  const TokenRows& from_;
  int copied_ = 0;
  std::uint32_t begins_[kRows];  // in vectors from x on
};

// As produce(), by the first kGatherThreads threads: w by load_w(stage, task, first k, first row of
// w), in one thread, which expects its bytes. Stages take kGatherFills arrivals.
template <typename C, typename LoadW>
__device__ void produce_gathered(Stages<C>& stages, unsigned char (&x)[C::kStages][C::kXBytes],
                                 const Arguments& a, const TokenRows& from, const LoadW& load_w) {
  const bool is_copier = threadIdx.x == 0;
  const int blocks = static_cast<int>(gridDim.x);
  Ring<C::kStages> ring;
  Schedule<C> schedule(a, blocks);  // each warp goes through it by itself
  RowCopies<C> rows(from);
  typename C::Task task;
  for (int index = static_cast<int>(blockIdx.x); schedule.find(index, task); index += blocks) {
    if (!C::has_rows(task)) continue;
    const int w_row = task.group * a.n + task.column;
    rows.begin(task.row, task.rows, C::copied_rows(task));
#pragma unroll 1
    for (int step = 0; step < a.k_steps; ++step) {
      sm90::barrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
      if (is_copier) {
        if (step == 0) stages.task[ring.stage] = task;
        load_w(ring.stage, task, step * C::kK, w_row);
      }
      rows.copy(x[ring.stage], step);
      sm90::barrier_arrive_copies(&stages.full[ring.stage]);
      ring.advance();
    }
    __syncwarp();
  }
  sm90::barrier_wait(&stages.empty[ring.stage], ring.phase ^ 1);
  if (is_copier) {
    stages.task[ring.stage].group = -1;
    sm90::barrier_arrive(&stages.full[ring.stage]);
  }
  sm90::barrier_arrive(&stages.full[ring.stage]);
  sm90::wait_copies();  // none is under way when the threads end
}

}  // namespace orrery::tiles

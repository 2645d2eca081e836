#pragma once

// grouped_gemm in tiles for sm_90a.
//
// One block per multiprocessor, or a pair of them, goes through the tiles of all groups: group by
// group, in a group by blocks of rows, in those by columns of w, rows fastest, so that blocks that
// run together share w and x in the L2 cache and a w is read once. The sizes of the groups are in
// device memory; a warp finds its next tile by a scan over 32 groups at a time, and a group without
// rows costs nothing. That warp copies x and w, 128 bytes of k at a time; two warpgroups multiply:
//
//   copies        x w | x w | x w | ...  of this tile and, behind it, of the next
//   warpgroup 0   rows  0 to 63    d[64, n] += x w^T ... | y |
//   warpgroup 1   rows 64 to 127   kLag steps later        ... | y |
//
// kLag puts the warpgroups out of step, so that one has the tensor cores for itself while the other
// writes y; both go equally fast otherwise, which keeps the distance.
// Rows past a group's end are copied, multiplied and not written.

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/grouped_gemm/scatter.cuh"
#include "kernels/grouped_gemm/tiled_choice.h"

namespace orrery::tiled {

// What one instance of the kernel is compiled for.
template <typename T_, int kM_, int kN_, int kStages_, int kBuffers_, TiledPair kPair_, int kLag_>
struct Config {
  using T = T_;
  static constexpr int kM = kM_;              // rows of a tile: 64 or 128
  static constexpr int kN = kN_;              // columns of a tile
  static constexpr int kStages = kStages_;    // in the ring of copies
  static constexpr int kBuffers = kBuffers_;  // of 64 rows x 64 columns of y, per warpgroup
  static constexpr TiledPair kPair = kPair_;
  static constexpr int kLag = kLag_;
  static constexpr int kCluster = kPair == TiledPair::kNone ? 1 : 2;
  static constexpr bool kSplitsColumns = kM == 64;  // between the warpgroups, else the rows
  static constexpr int kGroupN = kSplitsColumns ? kN / 2 : kN;  // columns of a warpgroup
  // Into so many parts of columns the last tiles may be cut.
  static constexpr int kMaxParts = kPair == TiledPair::kNone ? kGroupN / 64 : 1;
  static constexpr int kK = 128 / sizeof(T);                           // of a stage
  static constexpr int kXRows = kPair == TiledPair::kX ? kM / 2 : kM;  // of one copy
  static constexpr int kWRows = kPair == TiledPair::kW ? kN / 2 : kN;
  static constexpr std::uint32_t kXBytes = kM * 128;
  static constexpr std::uint32_t kWBytes = kN * 128;
  static constexpr int kThreads = 384;
};

struct Maps {
  CUtensorMap x;       // boxes of kXRows rows
  CUtensorMap w;       // boxes of kWRows rows
  CUtensorMap w_part;  // boxes of 64 rows
  CUtensorMap y;       // boxes of 64 rows of 64 columns
};

struct Arguments {
  const std::int32_t* counts = nullptr;  // [groups]
  const float* x_scale = nullptr;        // [rows], fp8
  const float* w_scale = nullptr;        // [groups * n], fp8
  bf16* y = nullptr;                     // [rows, n], or null with target
  ScatterTarget target;
  int groups = 0;
  int max_rows = 0;
  int n = 0;
  int k_steps = 0;
  bool w_is_read_once = false;  // probably: groups have few rows
};

// A tile of one block; group < 0 ends the kernel.
struct Task {
  int row;     // first, of x and y
  int rows;    // that the group has from there on: may be 0 or less in a pair, or past the tile
  int column;  // first, of y
  int columns;
  int group;
};

template <typename C>
struct Shared {
  alignas(1024) unsigned char x[C::kStages][C::kXBytes];
  alignas(1024) unsigned char w[C::kStages][C::kWBytes];
  alignas(1024) unsigned char y[2][C::kBuffers][64 * 128];
  float w_scale[2][C::kGroupN];
  Task task[C::kStages];  // of the tile whose first step the stage holds
  std::uint64_t full[C::kStages];
  std::uint64_t empty[C::kStages];
};

// Position in the ring. A reader waits for `phase`, a writer for `phase ^ 1`.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// --- producer: one warp ------------------------------------------------------------------------

// The sum over this lane and those below, or `most` if that is less; of values up to 2^30.
__device__ inline unsigned warp_prefix(unsigned value, unsigned most) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned below = __shfl_up_sync(0xFFFFFFFF, value, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) value = min(value + below, most);
  }
  return value;
}

// The tiles in their order; of pairs of blocks, those of both. All 32 lanes go together, lane l
// with group 32 i + l.
template <typename C>
class Schedule {
 public:
  static constexpr int kRows = C::kPair == TiledPair::kW ? 2 * C::kM : C::kM;
  static constexpr int kColumns = C::kPair == TiledPair::kX ? 2 * C::kN : C::kN;
  // Rows of x that go past all of a w before the next ones do: they and the columns of w in use
  // stay in the L2 cache.
  static constexpr int kBlockTiles = 2048 / kRows;

  // Of so many blocks or pairs.
  __device__ Schedule(const Arguments& a, int blocks)
      : a_(a), column_tiles_((a.n + kColumns - 1) / kColumns) {
    if constexpr (C::kMaxParts > 1) cut_last_tiles(blocks);
    load();
  }
  // Tile or part of one `index`, which must grow from call to call. False past the last one.
  __device__ bool find(int index, Task& task) {
    int part = 0;
    if (index > whole_) {
      part = (index - whole_) % parts_;
      index = whole_ + (index - whole_) / parts_;
    }
    const int columns = index < whole_ ? kColumns : kColumns / parts_;
    while (true) {
      const unsigned behind = __ballot_sync(0xFFFFFFFF, index < tiles_end_);
      if (behind != 0) {
        const int lane = __ffs(static_cast<int>(behind)) - 1;
        const int rows = __shfl_sync(0xFFFFFFFF, rows_, lane);
        const int row_tiles = (rows + kRows - 1) / kRows;
        const int first = __shfl_sync(0xFFFFFFFF, tiles_end_, lane) - row_tiles * column_tiles_;
        const int row_block = (index - first) / (kBlockTiles * column_tiles_);
        const int rest = (index - first) % (kBlockTiles * column_tiles_);
        const int height = min(kBlockTiles, row_tiles - row_block * kBlockTiles);
        const int row = (row_block * kBlockTiles + rest % height) * kRows;
        task = {.row = __shfl_sync(0xFFFFFFFF, rows_end_, lane) - rows + row,
                .rows = rows - row,
                .column = rest / height * kColumns + part * columns,
                .columns = columns,
                .group = base_ + lane};
        return true;
      }
      base_ += 32;
      if (base_ >= a_.groups) return false;
      load();
    }
  }

 private:
  // The tiles past the last multiple of `blocks` go in parts of fewer columns where that ends
  // earlier. Narrower products are slower, by a little for halves, by more for quarters.
  __device__ void cut_last_tiles(int blocks) {
    long long tiles = 0;  // too many where counts exceed max_rows: then none is found at the end
    for (int group = static_cast<int>(threadIdx.x % 32); group < a_.groups; group += 32) {
      const int rows = min(max(a_.counts[group], 0), a_.max_rows);
      tiles += static_cast<long long>((rows + kRows - 1) / kRows) * column_tiles_;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) tiles += __shfl_xor_sync(0xFFFFFFFF, tiles, step);
    const int last = static_cast<int>(tiles % blocks);
    const auto cost = [&](int parts, int percent) {
      return (last * parts + blocks - 1) / blocks * percent / parts;
    };
    int least = cost(1, 400);
    if (cost(2, 420) < least) {
      least = cost(2, 420);
      parts_ = 2;
    }
    if (C::kMaxParts >= 4 && cost(4, 480) < least) parts_ = 4;
    if (parts_ > 1) whole_ = static_cast<int>(min(tiles - last, 0x7FFFFFFFLL));
  }
  __device__ void load() {
    const int lane = threadIdx.x % 32;
    const int tiles_before = __shfl_sync(0xFFFFFFFF, tiles_end_, 31);
    const int rows_before = __shfl_sync(0xFFFFFFFF, rows_end_, 31);
    const int count = base_ + lane < a_.groups ? a_.counts[base_ + lane] : 0;
    const int room = a_.max_rows - rows_before;
    rows_end_ = rows_before + static_cast<int>(warp_prefix(min(max(count, 0), room), room));
    const int previous = __shfl_up_sync(0xFFFFFFFF, rows_end_, 1);
    rows_ = rows_end_ - (lane == 0 ? rows_before : previous);
    const unsigned tiles = (rows_ + kRows - 1) / kRows * column_tiles_;
    tiles_end_ = tiles_before + static_cast<int>(warp_prefix(tiles, 0xFFFFFFFF));
  }

  const Arguments& a_;
  int column_tiles_;
  int base_ = 0;  // lane 0's group
  int rows_ = 0;
  int rows_end_ = 0;  // rows and tiles up to this lane's group and with it
  int tiles_end_ = 0;
  int whole_ = 0x7FFFFFFF;  // tiles before those in parts
  int parts_ = 1;
};

// Copies one step into a stage that is empty.
template <typename C>
__device__ void load_stage(Shared<C>& shared, int stage, const Maps& maps, const Task& task, int k,
                           int w_row, int rank, bool has_tile, std::uint64_t policy) {
  std::uint64_t* const full = &shared.full[stage];
  if constexpr (C::kPair == TiledPair::kNone) {
    sm90::barrier_arrive_expect(full, C::kXBytes + task.columns * 128);
    sm90::load_2d(shared.x[stage], &maps.x, k, task.row, full);
    if (task.columns < C::kN) {
      for (int row = 0; row < task.columns; row += 64) {
        sm90::load_2d(shared.w[stage] + row * 128, &maps.w_part, k, w_row + row, full);
      }
    } else if (policy != 0) {
      sm90::load_2d(shared.w[stage], &maps.w, k, w_row, full, policy);
    } else {
      sm90::load_2d(shared.w[stage], &maps.w, k, w_row, full);
    }
  } else if constexpr (C::kPair == TiledPair::kW) {
    sm90::barrier_arrive_expect(full, C::kWBytes + (has_tile ? C::kXBytes : 0));
    if (has_tile) sm90::load_2d(shared.x[stage], &maps.x, k, task.row, full);
    sm90::load_2d_multicast(shared.w[stage] + rank * C::kWRows * 128, &maps.w, k,
                            w_row + rank * C::kWRows, full, 3);
  } else {
    sm90::barrier_arrive_expect(full, C::kXBytes + (has_tile ? C::kWBytes : 0));
    sm90::load_2d_multicast(shared.x[stage] + rank * C::kXRows * 128, &maps.x, k,
                            task.row + rank * C::kXRows, full, 3);
    if (has_tile) sm90::load_2d(shared.w[stage], &maps.w, k, w_row, full);
  }
}

template <typename C>
__device__ void produce(Shared<C>& shared, const Maps& maps, const Arguments& a, int rank) {
  const bool is_copier = threadIdx.x % 32 == 0;
  const std::uint64_t policy = a.w_is_read_once ? sm90::evict_first() : 0;
  Ring<C::kStages> ring;
  Schedule<C> schedule(a, static_cast<int>(gridDim.x) / C::kCluster);
  Task task;
  for (int index = static_cast<int>(blockIdx.x) / C::kCluster; schedule.find(index, task);
       index += static_cast<int>(gridDim.x) / C::kCluster) {
    if constexpr (C::kPair == TiledPair::kW) {
      task.row += rank * C::kM;
      task.rows -= rank * C::kM;
    }
    if constexpr (C::kPair == TiledPair::kX) task.column += rank * C::kN;
    const bool has_tile = task.rows > 0 && task.column < a.n;
    if (is_copier) {
      const int w_row = task.group * a.n + task.column;
      for (int step = 0; step < a.k_steps; ++step) {
        sm90::barrier_wait(&shared.empty[ring.stage], ring.phase ^ 1);
        if (step == 0) shared.task[ring.stage] = task;
        load_stage<C>(shared, ring.stage, maps, task, step * C::kK, w_row, rank, has_tile, policy);
        ring.advance();
      }
    }
    __syncwarp();
  }
  if (is_copier) {
    sm90::barrier_wait(&shared.empty[ring.stage], ring.phase ^ 1);
    shared.task[ring.stage].group = -1;
    sm90::barrier_arrive(&shared.full[ring.stage]);
  }
  __syncwarp();
}

// --- consumers: two warpgroups -----------------------------------------------------------------

template <typename C>
__device__ void release(Shared<C>& shared, int stage) {
  const int lane = threadIdx.x % 32;
  if constexpr (C::kCluster == 1) {
    if (lane == 0) sm90::barrier_arrive(&shared.empty[stage]);
  } else {
    if (lane < C::kCluster) sm90::barrier_arrive_cluster(&shared.empty[stage], lane);
  }
}

// d[64, kColumns] (+)= x w^T over one stage, issued and committed.
template <typename C, int kColumns>
__device__ void issue(float (&d)[kColumns / 2], const Shared<C>& shared, int stage, int group,
                      bool accumulate) {
  const unsigned char* x = shared.x[stage];
  const unsigned char* w = shared.w[stage];
  if constexpr (C::kSplitsColumns) {
    w += group * kColumns * 128;
  } else {
    x += group * 64 * 128;
  }
  const std::uint64_t x_base = sm90::descriptor_128(x);
  const std::uint64_t w_base = sm90::descriptor_128(w);
#pragma unroll
  for (int step = 0; step < 4; ++step) {  // 32 bytes of k each
    if constexpr (sizeof(typename C::T) == 1) {
      sm90::Wgmma<kColumns>::fp8_ss(d, x_base + 2 * step, w_base + 2 * step,
                                    step > 0 || accumulate);
    } else {
      sm90::Wgmma<kColumns>::bf16_ss(d, x_base + 2 * step, w_base + 2 * step,
                                     step > 0 || accumulate);
    }
  }
  sm90::wgmma_commit();
}

// All steps of a tile or a part of one into the first of `sums`. The first stage is full.
template <typename C, int kColumns>
__device__ void multiply(float (&sums)[C::kGroupN / 2], Shared<C>& shared, Ring<C::kStages>& ring,
                         int k_steps, int group) {
  auto& d = reinterpret_cast<float(&)[kColumns / 2]>(sums);
  sm90::wgmma_fence();
  issue<C, kColumns>(d, shared, ring.stage, group, false);
  int last = ring.stage;
  ring.advance();
  for (int step = 1; step < k_steps; ++step) {
    sm90::barrier_wait(&shared.full[ring.stage], ring.phase);
    sm90::wgmma_fence();
    issue<C, kColumns>(d, shared, ring.stage, group, true);
    sm90::wgmma_wait<1>();
    release<C>(shared, last);
    last = ring.stage;
    ring.advance();
  }
  sm90::wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < kColumns / 2; ++i) asm volatile("" : "+f"(d[i])::"memory");
  release<C>(shared, last);
}

// Rows and columns that a warpgroup writes.
struct Part {
  int row;
  int rows;  // at most 64 count
  int column;
  int columns;
};

struct Scales {
  float x[2];  // of this thread's two rows
  float w[2];  // of two columns, to be shared with the others
};
template <typename C>
__device__ Scales load_scales(const Arguments& a, const Part& part, int w_group) {
  const int thread = threadIdx.x % 128;
  Scales scales{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    if (row < part.rows) scales.x[half] = a.x_scale[part.row + row];
    const int column = part.column + thread + 128 * half;
    if (thread + 128 * half < C::kGroupN && column < a.n) {
      scales.w[half] = a.w_scale[static_cast<std::int64_t>(w_group) * a.n + column];
    }
  }
  return scales;
}

// y or the scatter's sums of what is in `buffer`: 64 rows of 128 swizzled bytes.
__device__ inline void write_vectors(const unsigned char* buffer, const Arguments& a,
                                     const Part& part, int column) {
  const int thread = threadIdx.x % 128;
  const int vector = thread % 8;
  if (column + 8 * vector >= a.n) return;
#pragma unroll
  for (int row = thread / 8; row < 64; row += 16) {
    if (row >= part.rows) break;
    const uint4 y =
        *reinterpret_cast<const uint4*>(buffer + row * 128 + ((vector ^ (row % 8)) * 16));
    bf16* const out = a.y + static_cast<std::int64_t>(part.row + row) * a.n + column + 8 * vector;
    if (a.target.out != nullptr) {
      scatter_vector(a.target, scatter_row(a.target, part.row + row, a.n), column + 8 * vector, y);
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

// y of a warpgroup, 64 columns at a time through its buffers: whole blocks of 64 rows by the copy
// engine, which drops columns past n.
template <typename C>
__device__ void write_part(const float (&d)[C::kGroupN / 2], Shared<C>& shared, const Maps& maps,
                           const Arguments& a, const Part& part, const Scales& scales, int group,
                           int& buffer_index) {
  constexpr bool kIsFp8 = sizeof(typename C::T) == 1;
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const bool is_whole = part.rows >= 64 && a.target.out == nullptr && a.n % 8 == 0;
  if constexpr (kIsFp8) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (thread + 128 * half < C::kGroupN)
        shared.w_scale[group][thread + 128 * half] = scales.w[half];
    }
  }
  // Where the lane's row of its 8 x 8 matrix lies: rows in turn by 8, columns by 16 bytes.
  const int row = thread / 32 * 16 + lane % 16;
  const float* const w_scales = shared.w_scale[group] + lane % 4 * 2;
#pragma unroll
  for (int panel = 0; panel < C::kGroupN / 64; ++panel) {
    const int column = part.column + 64 * panel;
    if (64 * panel < part.columns && column < a.n) {
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
          if constexpr (kIsFp8) {
            const float2 w =
                *reinterpret_cast<const float2*>(w_scales + 8 * (8 * panel + j + i / 2));
            low *= scales.x[i % 2] * w.x;
            high *= scales.x[i % 2] * w.y;
          }
          words[i] = pack(low, high);
        }
        sm90::store_matrix_x4(buffer + row * 128 + (((j + lane / 16) ^ (row % 8)) * 16), words[0],
                              words[1], words[2], words[3]);
      }
      if (is_whole) sm90::fence_async_shared();
      sm90::named_barrier_sync(1 + group, 128);
      if (!is_whole) write_vectors(buffer, a, part, column);
      if (thread == 0) {  // an empty group where nothing is copied: groups count buffers
        if (is_whole) sm90::store_2d(&maps.y, buffer, column, part.row);
        sm90::store_commit();
      }
      buffer_index = buffer_index + 1 == C::kBuffers ? 0 : buffer_index + 1;
    }
  }
}

template <typename C>
__device__ void consume(Shared<C>& shared, const Maps& maps, const Arguments& a, int group) {
  Ring<C::kStages> ring;
  float d[C::kGroupN / 2];
  int buffer_index = 0;
  bool is_first = true;
  while (true) {
    sm90::barrier_wait(&shared.full[ring.stage], ring.phase);
    const Task task = shared.task[ring.stage];
    if (task.group < 0) break;
    if (C::kLag > 0 && group == 1 && is_first && a.k_steps > C::kLag) {
      sm90::barrier_wait(&shared.full[C::kLag], 0);
    }
    is_first = false;
    const int columns = C::kSplitsColumns ? task.columns / 2 : task.columns;
    const Part part =
        C::kSplitsColumns
            ? Part{task.row, task.rows, task.column + group * columns, columns}
            : Part{task.row + 64 * group, task.rows - 64 * group, task.column, columns};
    if (part.rows <= 0 || part.column >= a.n) {
      for (int step = 0; step < a.k_steps; ++step) {
        if (step > 0) sm90::barrier_wait(&shared.full[ring.stage], ring.phase);
        release<C>(shared, ring.stage);
        ring.advance();
      }
      continue;
    }
    Scales scales{};
    if constexpr (sizeof(typename C::T) == 1) scales = load_scales<C>(a, part, task.group);
    if (C::kMaxParts == 1 || columns == C::kGroupN) {
      multiply<C, C::kGroupN>(d, shared, ring, a.k_steps, group);
    } else if (C::kMaxParts == 2 || columns == C::kGroupN / 2) {
      multiply<C, C::kGroupN / 2>(d, shared, ring, a.k_steps, group);
    } else {
      multiply<C, C::kGroupN / 4>(d, shared, ring, a.k_steps, group);
    }
    write_part<C>(d, shared, maps, a, part, scales, group, buffer_index);
  }
  if (threadIdx.x % 128 == 0) sm90::store_wait<0>();
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    tiled_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(memory);
  const int rank = C::kCluster == 1 ? 0 : static_cast<int>(sm90::cluster_rank());
  if (threadIdx.x == 0) {
    constexpr int kReleases = 8 * C::kCluster;  // one per warp that reads a block's copies
    for (int i = 0; i < C::kStages; ++i) {
      sm90::barrier_init(&shared.full[i], 1);
      sm90::barrier_init(&shared.empty[i], kReleases);
    }
    sm90::fence_barrier_init();
    sm90::prefetch_tensor_map(&maps.x);
    sm90::prefetch_tensor_map(&maps.w);
    if (a.target.out == nullptr) sm90::prefetch_tensor_map(&maps.y);
  }
  if constexpr (C::kCluster == 1) {
    __syncthreads();
  } else {
    sm90::cluster_sync();
  }
  if (threadIdx.x < 128) {
    sm90::registers_decrease<40>();
    if (threadIdx.x < 32) produce<C>(shared, maps, a, rank);
  } else {
    sm90::registers_increase<232>();
    consume<C>(shared, maps, a, static_cast<int>(threadIdx.x) / 128 - 1);
  }
  // A block's barriers take arrivals and its memory copies from the other one until that ends, too.
  if constexpr (C::kCluster > 1) {
    __syncwarp();
    sm90::cluster_sync();
  }
}

}  // namespace orrery::tiled

#pragma once

// The tiles of a grouped gemm of which one block per SM goes through all: what such kernels are
// called with, and which tile comes when. A kernel's configuration C says what its tiles are
// (tiled_sm90.cuh, swap_ab_sm90.cuh):
//
//   Task            a tile or a part of one
//   kRows           of x in a tile, at most
//   kColumns        of y in a tile
//   tile_rows(r)    of the tiles, all alike, that r rows of a group are divided among
//   task(place, tile_rows, part, parts)   part `part` of `parts` of the tile there, as a Task
//   kParts          what a tile in parts takes
//   kBlockTiles     tiles of rows that go past all of a w before the next ones do: they and the
//                   columns of w in use stay in the L2 cache; 0: as the arguments say, 12 %
//                   slower where k is 1,024

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/experts/grouped_gemm/scatter.h"
#include "kernels/experts/grouped_gemm/tile_sizes.h"

namespace orrery::tiles {

struct Arguments {
  const std::int32_t* counts = nullptr;  // [groups]
  const float* x_scale = nullptr;        // [rows], fp8
  const float* w_scale = nullptr;        // [groups * n], fp8
  bf16* y = nullptr;                     // [rows, n], fp16 where x is, or null with target
  ScatterTarget target;
  int groups = 0;
  int max_rows = 0;
  int n = 0;
  int k_steps = 0;
  int block_tiles = 0;  // where C::kBlockTiles is 0
};

// Where a tile begins.
struct Place {
  int row;     // of x and y
  int rows;    // that the group has from there on, also past the tile
  int column;  // of y
  int group;
};

// The sum over this lane and those below, or `most` if that is less; of values up to 2^30. (Written
// as min(value, most - below) + below it is compiled wrong by ptxas 13.0 where `most` is a
// constant: the difference's sign is lost.)
__device__ inline unsigned warp_prefix(unsigned value, unsigned most) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const unsigned below = __shfl_up_sync(0xFFFFFFFF, value, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) value = min(value + below, most);
  }
  return value;
}

// The tiles in their order. All 32 lanes go together, lane l with group 32 i + l.
template <typename C>
class Schedule {
 public:
  using Task = typename C::Task;

  // Of so many blocks.
  __device__ Schedule(const Arguments& a, int blocks)
      : a_(a), column_tiles_((a.n + C::kColumns - 1) / C::kColumns) {
    cut_last_tiles(blocks);
    load();
  }
  // Tile or part of one `index`, which must grow from call to call. False past the last one.
  __device__ bool find(int index, Task& task) {
    int part = 0;
    if (index > whole_) {
      part = (index - whole_) % parts_;
      index = whole_ + (index - whole_) / parts_;
    }
    const int parts = index < whole_ ? 1 : parts_;
    while (true) {
      const unsigned behind = __ballot_sync(0xFFFFFFFF, index < tiles_end_);
      if (behind != 0) {
        const int lane = __ffs(static_cast<int>(behind)) - 1;
        const int rows = __shfl_sync(0xFFFFFFFF, rows_, lane);
        const int tile_rows = C::tile_rows(rows);
        const int row_tiles = (rows + tile_rows - 1) / tile_rows;
        const int first = __shfl_sync(0xFFFFFFFF, tiles_end_, lane) - row_tiles * column_tiles_;
        const int block_tiles = C::kBlockTiles > 0 ? C::kBlockTiles : a_.block_tiles;
        const int row_block = (index - first) / (block_tiles * column_tiles_);
        const int rest = (index - first) % (block_tiles * column_tiles_);
        const int height = min(block_tiles, row_tiles - row_block * block_tiles);
        const int row = (row_block * block_tiles + rest % height) * tile_rows;
        task = C::task({.row = __shfl_sync(0xFFFFFFFF, rows_end_, lane) - rows + row,
                        .rows = rows - row,
                        .column = rest / height * C::kColumns,
                        .group = base_ + lane},
                       tile_rows, part, parts);
        return true;
      }
      base_ += 32;
      if (base_ >= a_.groups) return false;
      load();
    }
  }

 private:
  __device__ static int row_tiles_of(int rows) {
    const int tile_rows = C::tile_rows(rows);
    return (rows + tile_rows - 1) / tile_rows;
  }
  // The tiles past the last multiple of `blocks` go in parts where that ends earlier.
  __device__ void cut_last_tiles(int blocks) {
    long long tiles = 0;  // too many where counts exceed max_rows: then none is found at the end
    for (int group = static_cast<int>(threadIdx.x % 32); group < a_.groups; group += 32) {
      const int rows = min(max(a_.counts[group], 0), a_.max_rows);
      tiles += static_cast<long long>(row_tiles_of(rows)) * column_tiles_;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) tiles += __shfl_xor_sync(0xFFFFFFFF, tiles, step);
    const int last = static_cast<int>(tiles % blocks);
    parts_ = tiles::cut_last_tiles(last, blocks, C::kParts).parts;
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
    const unsigned tiles = row_tiles_of(rows_) * column_tiles_;
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

}  // namespace orrery::tiles

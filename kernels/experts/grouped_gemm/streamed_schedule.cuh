#pragma once

// The work of the weight-streaming grouped gemm: which groups have rows, and which pieces of which
// work items are whose (drawing in streamed_sm90.cu).

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/experts/grouped_gemm/scatter.h"

namespace orrery::streamed {

constexpr int kWarp = 32;
constexpr int kGroupThreads = 128;
constexpr int kPanelBytes = 128;  // of k: one row of the 128-byte swizzle
constexpr int kMaxGroups = 512;

struct Arguments {
  const std::int32_t* counts;
  void* y;                // bf16 or fp16
  ScatterTarget scatter;  // in place of y where it has an out
  const float* x_scale;   // fp8 only
  const float* w_scale;
  std::uint32_t* flags;  // [positions, warps]: 1 where a partial sum is there
  float* partials;       // [positions, rows x tokens]
  int groups;
  int max_rows;
  int n;
  int n_blocks;  // of the tile's rows
  int k_steps;   // stages that cover k
  int cuts;      // of a work item, at most
  int tokens_log2;
  int stages;
  int stage_bytes;
  int outputs_at;  // bytes
  int groups_at;
  int barriers_at;
  bool overlap;  // counts and w may be read ahead of the kernels before
};

// A group that has rows. The table of them ends with an entry that holds the number of work items;
// the entry before the table holds the number of groups in it (as `group`).
struct __align__(16) ActiveGroup {
  int group;
  int row;  // of x, the first
  int rows;
  int item;  // the first
};

// Ends a scan of one value per lane: the sum of the lanes before, saturated.
__device__ inline int scan_before(int value, int most) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFF, value, distance);
    if (lane >= distance) value = min(value + other, most);
  }
  const int before = __shfl_up_sync(0xFFFFFFFF, value, 1);
  return lane == 0 ? 0 : before;
}

// By one warp: the table of active groups. Counts are clamped to 0 .. what is left of max_rows.
// Each lane has neighbouring groups, so that all counts are asked for at once.
__device__ inline void list_active(const Arguments& a, ActiveGroup* table) {
  constexpr int kPerLane = kMaxGroups / kWarp;
  constexpr int kMost = 0x7FFFFFFF;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int per_lane = (a.groups + kWarp - 1) / kWarp;
  const int first = lane * per_lane;
  int rows[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool is_mine = i < per_lane && first + i < a.groups;
    rows[i] = is_mine ? __ldcg(a.counts + first + i) : 0;
  }
  int total = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    rows[i] = min(max(rows[i], 0), a.max_rows);
    total = min(total + rows[i], a.max_rows);
  }
  const int first_row = scan_before(total, a.max_rows);
  int left = a.max_rows - first_row;
  int items = 0;
  int active = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    rows[i] = min(rows[i], left);
    left -= rows[i];
    items += ((rows[i] + (1 << a.tokens_log2) - 1) >> a.tokens_log2) * a.n_blocks;
    active += rows[i] > 0 ? 1 : 0;
  }
  int entry = scan_before(active, kMost);
  int item = scan_before(items, kMost);
  int row = first_row;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (rows[i] > 0) {
      table[entry++] = {first + i, row, rows[i], item};
      row += rows[i];
      item += ((rows[i] + (1 << a.tokens_log2) - 1) >> a.tokens_log2) * a.n_blocks;
    }
  }
  if (lane == kWarp - 1) {
    table[entry] = {a.groups, row, 0, item};
    table[-1] = {entry, 0, 0, 0};
  }
}

// Steps of one work item that a block does together.
struct Piece {
  int group;
  int row;     // of x, the first
  int tokens;  // rows of x
  int block;   // of n
  int first;   // stage
  int count;   // of stages
  bool starts;
  bool ends;
};

// A block's share of the work: items at a stride of the number of blocks, so that blocks work on
// neighbouring ones and find x in the L2. Items of a last round that has work for fewer than half
// of the blocks are cut, each among several of them. The last block is at the first position: a
// partial sum is then always waited for by a block that started later than its maker.
class Pieces {
 public:
  __device__ Pieces(const Arguments& a, const ActiveGroup* table, int active)
      : a_(a), table_(table), next_(position()) {
    const int items = table[active].item;
    whole_ = items / positions() * positions();
    const int rest = items - whole_;
    cuts_ = rest > 0 ? max(min(positions() / rest, a.cuts), 1) : 1;
    end_ = whole_ + rest * cuts_;
  }
  [[nodiscard]] __device__ static int positions() { return static_cast<int>(gridDim.x); }
  [[nodiscard]] __device__ static int position() {
    return positions() - 1 - static_cast<int>(blockIdx.x);
  }
  // Of each item of the last round.
  [[nodiscard]] __device__ int cuts() const { return cuts_; }
  __device__ bool next(Piece& piece) {
    if (next_ >= end_) return false;
    const bool is_whole = next_ < whole_;
    const int cuts = is_whole ? 1 : cuts_;
    const int in_round = is_whole ? 0 : (next_ - whole_) / cuts;
    const int item = is_whole ? next_ : whole_ + in_round;
    const int cut = is_whole ? 0 : next_ - whole_ - in_round * cuts;
    next_ += positions();
    while (item >= table_[entry_ + 1].item) ++entry_;
    const ActiveGroup group = table_[entry_];
    const int row_tiles = (group.rows + (1 << a_.tokens_log2) - 1) >> a_.tokens_log2;
    const int within = item - group.item;
    piece.block = within / row_tiles;
    const int row = (within - piece.block * row_tiles) << a_.tokens_log2;
    piece.group = group.group;
    piece.row = group.row + row;
    piece.tokens = min(group.rows - row, 1 << a_.tokens_log2);
    piece.first = a_.k_steps * cut / cuts;
    piece.count = a_.k_steps * (cut + 1) / cuts - piece.first;
    piece.starts = cut == 0;
    piece.ends = cut == cuts - 1;
    return true;
  }

 private:
  const Arguments& a_;
  const ActiveGroup* table_;
  int whole_;  // items before the last round
  int cuts_;
  int next_;
  int end_;
  int entry_ = 0;
};

}  // namespace orrery::streamed

#pragma once

// Walks the rows of a block's stretch of units (split.h).

#include <cstdint>

#include "kernels/attention/attention_decode/split.h"

namespace orrery::decode {

struct Work {
  const std::int32_t* context_lens;
  std::int32_t seqs;
  std::int32_t groups;  // of kv heads
  std::int32_t window;
  std::int32_t keys;  // of a unit
};

// Where a block starts, the same in all of its threads.
struct Stretch {
  std::int32_t units;   // of the launch
  std::int32_t blocks;  // that take part
  std::int32_t begin;   // this block's first unit, begin == end: none
  std::int32_t end;
  std::int32_t seq;        // that has `begin`
  std::int32_t seq_begin;  // its first unit
};

struct StretchScratch {
  std::int32_t warp_units[kWarps];
  std::int32_t seq;
  std::int32_t seq_begin;
};

// Called by all threads of the block: prefix sums over the sequences' units.
__device__ inline Stretch find_stretch(const Work& work, const AttentionDecodeSplit& split,
                                       StretchScratch& scratch) {
  constexpr int kThreads = kWarps * 32;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int seqs_per_thread = (work.seqs + kThreads - 1) / kThreads;
  const int first = threadIdx.x * seqs_per_thread;
  const int last = min(first + seqs_per_thread, work.seqs);
  const auto units = [&](int seq) {
    return units_of(__ldg(work.context_lens + seq), work.window, work.keys).count * work.groups;
  };
  int own = 0;
  for (int seq = first; seq < last; ++seq) own += units(seq);
  int inclusive = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(0xFFFFFFFF, inclusive, distance);
    if (lane >= distance) inclusive += before;
  }
  if (lane == 31) scratch.warp_units[warp] = inclusive;
  __syncthreads();
  int total = 0;
  int before = inclusive - own;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before += scratch.warp_units[i];
    total += scratch.warp_units[i];
  }
  Stretch stretch{.units = total, .blocks = blocks_used(total, split)};
  const int block = static_cast<int>(blockIdx.x);
  if (total > 0 && block < stretch.blocks) {
    stretch.begin = unit_begin(total, stretch.blocks, block);
    stretch.end = unit_begin(total, stretch.blocks, block + 1);
    if (stretch.begin >= before && stretch.begin < before + own) {
      int seq = first;
      for (int count = units(seq); before + count <= stretch.begin; count = units(++seq)) {
        before += count;
      }
      scratch.seq = seq;
      scratch.seq_begin = before;
    }
  }
  __syncthreads();
  stretch.seq = scratch.seq;
  stretch.seq_begin = scratch.seq_begin;
  return stretch;
}

// The part of one row that lies in the stretch.
class Cursor {
 public:
  __device__ Cursor(const Work& work, const Stretch& stretch)
      : work_(work), stretch_(stretch), seq_(stretch.seq) {
    if (!done_before_start()) {
      load();
      group_ = (stretch.begin - stretch.seq_begin) / units_.count;
      row_begin_ = stretch.seq_begin + group_ * units_.count;
    }
  }
  [[nodiscard]] __device__ bool done() const { return row_begin_ >= stretch_.end; }
  __device__ void next() {
    row_begin_ += units_.count;
    if (++group_ < work_.groups || done()) return;
    group_ = 0;
    do {
      ++seq_;
      load();
    } while (units_.count == 0);
  }

  [[nodiscard]] __device__ int seq() const { return seq_; }
  [[nodiscard]] __device__ int group() const { return group_; }
  [[nodiscard]] __device__ int context() const { return context_; }
  // Keys before this are outside of the window.
  [[nodiscard]] __device__ int first_key() const { return max(0, context_ - work_.window); }
  // Units of the sequence: [begin_unit, end_unit).
  [[nodiscard]] __device__ int begin_unit() const {
    return units_.first + max(stretch_.begin - row_begin_, 0);
  }
  [[nodiscard]] __device__ int end_unit() const {
    return units_.first + min(units_.count, stretch_.end - row_begin_);
  }
  // Blocks that share the row.
  [[nodiscard]] __device__ int first_block() const {
    return block_of(stretch_.units, stretch_.blocks, row_begin_);
  }
  [[nodiscard]] __device__ int last_block() const {
    return block_of(stretch_.units, stretch_.blocks, row_begin_ + units_.count - 1);
  }
  [[nodiscard]] __device__ bool is_whole() const {
    return row_begin_ >= stretch_.begin && row_begin_ + units_.count <= stretch_.end;
  }

 private:
  [[nodiscard]] __device__ bool done_before_start() const { return stretch_.begin >= stretch_.end; }
  __device__ void load() {
    context_ = __ldg(work_.context_lens + seq_);
    units_ = units_of(context_, work_.window, work_.keys);
  }

  const Work& work_;
  const Stretch& stretch_;
  int seq_ = 0;
  int group_ = 0;
  int context_ = 0;
  int row_begin_ = 0;
  Units units_;
};

}  // namespace orrery::decode

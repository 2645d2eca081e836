#pragma once

// Copies of keys and values into a warp's ring of tiles, ahead of the warp.

#include <cstdint>

#include "kernels/attention/attention_decode/cursor.cuh"
#include "kernels/attention/attention_decode/parameters.cuh"
#include "kernels/cuda/sm90.cuh"

namespace orrery::decode {

// A warp's units in the order in which it takes them; copies their tiles ahead. Of a row's units
// the warps with the same kv head take turns.
//
// The full rings of all SMs are 17 MB in flight, 4 us of memory time, and anything small that is
// asked for behind it waits as long. So block table entries come 32 at a time, and the lines that
// the next row starts with are fetched to the L2 cache when a row is begun.
class Feeder {
 public:
  __device__ Feeder(const Parameters& parameters, const Cursor& start, const CUtensorMap* keys,
                    const CUtensorMap* values)
      : parameters_(parameters), keys_(keys), values_(values), cursor_(start) {
    const int warp = threadIdx.x / 32;
    const int heads = parameters.split.heads_per_block;
    head_ = warp % heads;
    part_ = warp / heads;
    step_ = kWarps / heads;
    policy_ = sm90::evict_first();
    if (cursor_.done()) return;
    unit_ = cursor_.begin_unit() + part_;
    settle();
    if (!cursor_.done()) prefetch_next_row();
  }
  __device__ void copy_keys(char* tile, std::uint64_t* full) const { copy(keys_, tile, full); }
  __device__ void copy_values(char* tile, std::uint64_t* full) const { copy(values_, tile, full); }
  __device__ void next() {
    if (cursor_.done()) return;
    unit_ += step_;
    first_lane_ += parameters_.boxes;
    settle();
  }

 private:
  // To the next row that has a unit for this warp, with its block table entries.
  __device__ void settle() {
    bool is_new = first_lane_ >= 32;
    while (unit_ >= cursor_.end_unit()) {
      cursor_.next();
      if (cursor_.done()) return;
      unit_ = cursor_.begin_unit() + part_;
      prefetch_next_row();
      is_new = true;
    }
    if (is_new) look_up();
  }
  // Entries for this unit and those after it, one per copy, a lane each.
  __device__ void look_up() {
    const int lane = threadIdx.x % 32;
    const int unit = unit_ + lane / parameters_.boxes * step_;
    const int key = unit * parameters_.work.keys + lane % parameters_.boxes * parameters_.box_keys;
    // Units may reach over blocks that the sequence does not have: any other will do.
    const int shift = parameters_.block_shift;
    const int page =
        min(max(key >> shift, cursor_.first_key() >> shift), (cursor_.context() - 1) >> shift);
    block_ = __ldg(table(cursor_.seq()) + page);
    first_lane_ = 0;
  }
  __device__ void prefetch_next_row() const {
    const bool same = cursor_.group() + 1 < parameters_.work.groups;
    const int seq = cursor_.seq() + (same ? 0 : 1);
    if (seq >= parameters_.work.seqs) return;
    const int heads = parameters_.split.heads_per_block * parameters_.ratio;
    const int first = (same ? cursor_.group() + 1 : 0) * heads;
    const int head_bytes = parameters_.head_bytes;
    const auto* q = reinterpret_cast<const char*>(parameters_.q + seq * parameters_.q_stride) +
                    first * head_bytes;
    constexpr int kLine = 128;
    const int line = static_cast<int>(threadIdx.x) * kLine;
    if (line < heads * head_bytes) sm90::prefetch_l2(q + line);
    if (threadIdx.x % 32 == 0 && !same) sm90::prefetch_l2(table(seq));
  }
  [[nodiscard]] __device__ const std::int32_t* table(int seq) const {
    return parameters_.block_table + seq * parameters_.blocks_per_sequence;
  }
  __device__ void copy(const CUtensorMap* map, char* tile, std::uint64_t* full) const {
    if (cursor_.done()) return;
    const int lane = threadIdx.x % 32;
    const int block = __shfl_sync(0xFFFFFFFF, block_, first_lane_ + lane);
    if (lane == 0) sm90::barrier_arrive_expect(full, kTileBytes);
    __syncwarp();
    if (lane < parameters_.boxes) {
      const int key = unit_ * parameters_.work.keys + lane * parameters_.box_keys;
      const int row = key & ((1 << parameters_.block_shift) - 1);
      const int kv_head = cursor_.group() * parameters_.split.heads_per_block + head_;
      sm90::load_5d(tile + lane * (kTileBytes / parameters_.boxes), map, 0, row, 0, kv_head, block,
                    full, policy_);
    }
  }

  const Parameters& parameters_;
  const CUtensorMap* keys_;
  const CUtensorMap* values_;
  Cursor cursor_;
  std::uint64_t policy_;
  int head_;
  int part_;
  int step_;
  int unit_ = 0;
  int block_ = 0;        // of one copy, this lane's
  int first_lane_ = 32;  // that holds this unit's; 32: none does
};

}  // namespace orrery::decode

#pragma once

// Copies within global memory by the bulk copy engine, through a ring of stages in shared memory
// that one thread drives: memory --bulk--> stage 0 .. kStages - 1 --bulk--> memory.

#include "kernels/cuda/sm90.cuh"

namespace orrery {

template <int kStages, int kStageBytes>
class CopyRing {
 public:
  static constexpr int kAhead = kStages / 2;  // loads in flight; the other stages drain to memory
  static constexpr std::size_t kSharedBytes =
      static_cast<std::size_t>(kStages) * (kStageBytes + sizeof(std::uint64_t));

  // `shared`: kSharedBytes, 128-byte aligned.
  __device__ explicit CopyRing(unsigned char* shared)
      : stages_(shared),
        full_(reinterpret_cast<std::uint64_t*>(shared + kStages * kStageBytes)),
        policy_(sm90::evict_first()) {
    for (int stage = 0; stage < kStages; ++stage) sm90::barrier_init(&full_[stage], 1);
    sm90::fence_barrier_init();
  }
  // Up to kStageBytes, all multiples of 16.
  __device__ void push(const void* from, void* to, std::uint32_t bytes) {
    if (pushed_ - drained_ == kAhead) drain();
    sm90::store_wait_read<kStages - kAhead - 1>();  // so the stage has been written to memory
    const int stage = pushed_ % kStages;
    to_[stage] = to;
    bytes_[stage] = bytes;
    sm90::barrier_arrive_expect(&full_[stage], bytes);
    sm90::copy_bulk(stages_ + stage * kStageBytes, from, bytes, &full_[stage], policy_);
    ++pushed_;
  }
  __device__ void finish() {
    while (drained_ < pushed_) drain();
    sm90::store_wait<0>();
  }

 private:
  __device__ void drain() {
    const int stage = drained_ % kStages;
    sm90::barrier_wait(&full_[stage], drained_ / kStages & 1);
    sm90::store_bulk(to_[stage], stages_ + stage * kStageBytes, bytes_[stage]);
    sm90::store_commit();
    ++drained_;
  }

  unsigned char* stages_;
  std::uint64_t* full_;
  std::uint64_t policy_;
  void* to_[kStages];
  std::uint32_t bytes_[kStages];
  int pushed_ = 0;
  int drained_ = 0;
};

}  // namespace orrery

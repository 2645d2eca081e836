#pragma once

// What fills shared memory in the weight-streaming gemm: the call's numbers and the producer of its
// ring of stages (drawing in streaming_sm90.cu).

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/sm90.cuh"

namespace orrery::streaming {

constexpr int kWarp = 32;
constexpr int kGroupThreads = 128;
constexpr int kPanelBytes = 128;  // of k: one row of the 128-byte swizzle

template <typename T, int kTokens, int kBlocks>
struct Shape {
  static constexpr int kPanelK = kPanelBytes / sizeof(T);
  static constexpr int kXPanelBytes = kTokens * kPanelBytes;
  // Consumer warpgroups: a second one where a single one would run out of registers.
  static constexpr int kGroups = kBlocks * kTokens >= 256 && kBlocks % 2 == 0 ? 2 : 1;
  static constexpr int kGroupBlocks = kBlocks / kGroups;
  static constexpr int kConsumers = kGroups * kGroupThreads;
  static constexpr int kThreads = kConsumers + 2 * kWarp;
};

struct Arguments {
  bf16* y;
  const float* x_scale;  // fp8 only
  const float* w_scale;
  const bf16* bias;  // null: none
  int scale_step;    // 0 per tensor, 1 per row
  int m;
  int n;
  int rows;     // of w per block, a multiple of 8
  int panels;   // per stage
  int k_steps;  // stages that cover k
  int split;
  int stages;  // of w
  int window;  // of them, that may be under way
  int x_stages;
  int w_bytes;  // of a stage
  int x_bytes;
  int w_at;         // bytes
  int sum_stride;   // floats
  int barriers_at;  // bytes
  bool overlap;     // w may be read ahead of the kernel before
};

struct Slot {  // of a ring of stages
  int index = 0;
  std::uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// The barriers of the two rings, behind each other.
struct Barriers {
  std::uint64_t* w_full;
  std::uint64_t* w_empty;
  std::uint64_t* x_full;
  std::uint64_t* x_empty;

  __device__ Barriers(const Arguments& a, unsigned char* shared)
      : w_full(reinterpret_cast<std::uint64_t*>(shared + a.barriers_at)),
        w_empty(w_full + a.stages),
        x_full(w_empty + a.stages),
        x_empty(x_full + a.x_stages) {}
};

// The stages of k of a block.
struct Stretch {
  int first = 0;
  int count = 0;
};

// Fills the ring of w with the block's stages, rows from `row`.
template <typename Shape>
struct WeightProducer {
  const Arguments& a;
  unsigned char* stages;
  Barriers barriers;
  const CUtensorMap* map;
  int row;
  Stretch k;
  std::uint64_t policy;
  int step = 0;
  Slot slot{};
  Slot landed{};  // `window` steps behind

  __device__ void load() {
    std::uint64_t* const full = &barriers.w_full[slot.index];
    sm90::barrier_arrive_expect(full, a.w_bytes);
    unsigned char* to = stages + a.w_at + slot.index * a.w_bytes;
    for (int panel = 0; panel < a.panels; ++panel) {
      sm90::load_2d(to + panel * a.rows * kPanelBytes, map,
                    ((k.first + step) * a.panels + panel) * Shape::kPanelK, row, full, policy);
    }
    ++step;
    slot.next(a.stages);
  }
  // What may be under way at once.
  __device__ void start() {
    while (step < min(k.count, a.window)) load();
  }
  // The rest. Lets the next kernel start where there is room once kLast stages are left to ask for:
  // what it asks for comes behind them. Blocks of wide clusters that wait beside those that run
  // would crowd on some SMs, unless they fetch meanwhile.
  __device__ void run() {
    constexpr int kLast = 4;
    constexpr int kWide = 2;
    const bool is_early = a.overlap || a.split <= kWide;
    const int trigger = is_early ? max(step, k.count - kLast) : k.count;
    while (step < k.count) {
      if (step == trigger) cudaTriggerProgrammaticLaunchCompletion();
      if (step >= a.stages) sm90::barrier_wait(&barriers.w_empty[slot.index], slot.parity ^ 1);
      sm90::barrier_wait(&barriers.w_full[landed.index], landed.parity);
      landed.next(a.stages);
      load();
    }
    if (is_early && trigger >= k.count) cudaTriggerProgrammaticLaunchCompletion();
  }
};

// Fills the ring of x once the kernels ahead have ended.
template <typename Shape>
__device__ void load_x(const Arguments& a, unsigned char* stages, const Barriers& barriers,
                       const CUtensorMap* map, const Stretch& k) {
  cudaGridDependencySynchronize();
  Slot slot;
  for (int step = 0; step < k.count; ++step) {
    if (step >= a.x_stages) sm90::barrier_wait(&barriers.x_empty[slot.index], slot.parity ^ 1);
    std::uint64_t* const full = &barriers.x_full[slot.index];
    sm90::barrier_arrive_expect(full, a.x_bytes);
    unsigned char* to = stages + slot.index * a.x_bytes;
    for (int panel = 0; panel < a.panels; ++panel) {
      sm90::load_2d(to + panel * Shape::kXPanelBytes, map,
                    ((k.first + step) * a.panels + panel) * Shape::kPanelK, 0, full);
    }
    slot.next(a.x_stages);
  }
}

}  // namespace orrery::streaming

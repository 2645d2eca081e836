#pragma once

// What fills shared memory in the weight-streaming gemm: the call's numbers and the producer of its
// ring of stages (drawing in skinny_sm90.cu).

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/sm90.cuh"

namespace orrery::skinny {

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
  static constexpr int kThreads = kConsumers + kWarp;
};

struct Arguments {
  bf16* y;
  const float* x_scale;  // fp8 only
  const float* w_scale;
  int scale_step;  // 0 per tensor, 1 per row
  int m;
  int n;
  int rows;     // of w per block, a multiple of 8
  int panels;   // per stage
  int k_steps;  // stages that cover k
  int split;
  int stages;
  int stage_bytes;
  int sum_stride;   // floats
  int barriers_at;  // bytes
  bool overlap;     // w may be read ahead of the kernel before
};

struct Slot {  // of the ring of stages
  int index = 0;
  std::uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// Fills the ring with stages `first`.. of k, `count` of them.
template <typename Shape>
struct Producer {
  const Arguments& a;
  unsigned char* stages;
  std::uint64_t* full;
  std::uint64_t* empty;
  const CUtensorMap* w_map;
  const CUtensorMap* x_map;
  int row;
  int first;
  int count;

  __device__ void expect(int slot) const {
    sm90::barrier_arrive_expect(&full[slot], a.stage_bytes);
  }
  __device__ void load_w(int slot, int step, std::uint64_t policy) const {
    unsigned char* to = stages + slot * a.stage_bytes;
    for (int panel = 0; panel < a.panels; ++panel) {
      sm90::load_2d(to + panel * a.rows * kPanelBytes, w_map,
                    ((first + step) * a.panels + panel) * Shape::kPanelK, row, &full[slot], policy);
    }
  }
  __device__ void load_x(int slot, int step) const {
    unsigned char* to = stages + slot * a.stage_bytes + a.panels * a.rows * kPanelBytes;
    for (int panel = 0; panel < a.panels; ++panel) {
      sm90::load_2d(to + panel * Shape::kXPanelBytes, x_map,
                    ((first + step) * a.panels + panel) * Shape::kPanelK, 0, &full[slot]);
    }
  }
  // The first round of the ring; of w alone where x may still be in the making.
  __device__ void start(std::uint64_t policy) const {
    for (int step = 0; step < min(count, a.stages); ++step) {
      expect(step);
      if (!a.overlap) load_x(step, step);
      load_w(step, step, policy);
    }
  }
  __device__ void run(std::uint64_t policy) const {
    cudaTriggerProgrammaticLaunchCompletion();  // the next may start where there is room
    if (a.overlap) {
      cudaGridDependencySynchronize();
      for (int step = 0; step < min(count, a.stages); ++step) load_x(step, step);
    }
    Slot slot;
    for (int step = a.stages; step < count; ++step) {
      sm90::barrier_wait(&empty[slot.index], slot.parity);
      expect(slot.index);
      load_x(slot.index, step);
      load_w(slot.index, step, policy);
      slot.next(a.stages);
    }
  }
};

}  // namespace orrery::skinny

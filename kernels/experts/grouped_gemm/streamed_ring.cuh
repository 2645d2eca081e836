#pragma once

// The ring of stages of the weight-streaming grouped gemm and who fills it (drawing in
// streamed_sm90.cu).

#include <cuda.h>

#include <cstdint>
#include <iterator>

#include "kernels/cuda/sm90.cuh"
#include "kernels/experts/grouped_gemm/streamed_schedule.cuh"

namespace orrery::streamed {

constexpr int kWidths[] = {8, 16, 32, 64};  // of the MMA

struct Maps {
  CUtensorMap w;                      // [groups, n, k], boxes of the tile's rows
  CUtensorMap x[std::size(kWidths)];  // [max_rows, k], boxes of 8, 16, 32, 64 rows
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

__device__ inline int width_index(int tokens) {
  return tokens <= 8 ? 0 : tokens <= 16 ? 1 : tokens <= 32 ? 2 : 3;
}

// The stages of a block's pieces, one after the other.
struct Steps {
  Pieces pieces;
  Piece piece{};
  int step = 0;

  __device__ bool next() {
    if (++step < piece.first + piece.count) return true;
    if (!pieces.next(piece)) return false;
    step = piece.first;
    return true;
  }
};

// Fills the ring.
template <typename T, int kRows, int kPanels>
struct Producer {
  static constexpr int kPanelK = kPanelBytes / sizeof(T);
  static constexpr int kPanelW = kRows * kPanelBytes;
  const Maps& maps;
  const Arguments& a;
  unsigned char* stages;
  std::uint64_t* full;
  std::uint64_t* empty;

  __device__ void load_w(const Steps& at, int slot, std::uint64_t policy) const {
    const int panel_x = (8 << width_index(at.piece.tokens)) * kPanelBytes;
    unsigned char* stage = stages + slot * a.stage_bytes;
    sm90::barrier_arrive_expect(&full[slot], kPanels * (kPanelW + panel_x));
    for (int panel = 0; panel < kPanels; ++panel) {
      sm90::load_3d(stage + panel * kPanelW, &maps.w, (at.step * kPanels + panel) * kPanelK,
                    at.piece.block * kRows, at.piece.group, &full[slot], policy);
    }
  }
  __device__ void load_x(const Steps& at, int slot) const {
    const int index = width_index(at.piece.tokens);
    unsigned char* stage = stages + slot * a.stage_bytes + kPanels * kPanelW;
    for (int panel = 0; panel < kPanels; ++panel) {
      sm90::load_2d(stage + (panel * 8 << index) * kPanelBytes, &maps.x[index],
                    (at.step * kPanels + panel) * kPanelK, at.piece.row, &full[slot]);
    }
  }
  // With overlap, w of the first round of the ring is asked for before the kernels ahead have
  // ended, x after.
  __device__ void run(const Pieces& pieces) const {
    const std::uint64_t policy = sm90::evict_first();
    Steps steps{pieces};
    int started = 0;
    if (a.overlap) {
      while (started < a.stages && steps.next()) load_w(steps, started++, policy);
      cudaGridDependencySynchronize();
      Steps again{pieces};
      for (int slot = 0; slot < started && again.next(); ++slot) load_x(again, slot);
    }
    // Empty at first, or after the round that has started.
    Slot slot{.index = started % a.stages, .parity = started == a.stages ? 0u : 1u};
    while (steps.next()) {
      sm90::barrier_wait(&empty[slot.index], slot.parity);
      load_w(steps, slot.index, policy);
      load_x(steps, slot.index);
      slot.next(a.stages);
    }
  }
};

}  // namespace orrery::streamed

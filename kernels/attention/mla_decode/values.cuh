#pragma once

// The two warpgroups of mla_decode that add weighted values up, each for half of the columns.

#include "kernels/attention/mla_decode/block.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace orrery::mla {

struct Values {
  Shared& shared;
  const Parameters& p;
  int group;
  int half;  // of the 512 columns
  Ring<kStages> ring;
  Ring<kFirstStages> first_ring;

  __device__ std::uint8_t* values() const {
    return half == 0 ? shared.first[first_ring.stage] : shared.second[ring.stage];
  }

  // Read anew wherever used: registers are scarce here.
  __device__ static int thread() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index % kWarpGroup;
  }
  __device__ static int row() {
    const int index = thread();
    return index / 32 * 16 + index % 32 / 4;
  }

  // Rows past the sequence's end may hold NaN, which a weight of zero does not cancel.
  __device__ void clear_rows(int tokens) {
    std::uint8_t* panels = values();
    const int first = tokens * 128 + thread() * 16;
#pragma unroll 1
    for (int panel = 0; panel < kValuePanels / 2; ++panel) {
#pragma unroll 1
      for (int at = first; at < kPanelBytes; at += kWarpGroup * 16) {
        *reinterpret_cast<uint4*>(panels + panel * kPanelBytes + at) = uint4{0, 0, 0, 0};
      }
    }
    fence_async_shared();
    named_barrier_sync(2 + half, kWarpGroup);
  }

  __device__ static void multiply_rows(float (&o)[2][64], float a, float b) {
#pragma unroll
    for (int i = 0; i < 128; i += 4) {
      o[i / 64][i % 64] *= a;
      o[i / 64][i % 64 + 1] *= a;
      o[i / 64][i % 64 + 2] *= b;
      o[i / 64][i % 64 + 3] *= b;
    }
  }

  __device__ static void store_row(bf16* to, const float (&o)[2][64], int r) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      *reinterpret_cast<std::uint32_t*>(to + 8 * j) =
          pack(o[j / 16][4 * (j % 16) + 2 * r], o[j / 16][4 * (j % 16) + 2 * r + 1]);
    }
  }
  __device__ static void store_row(float* to, const float (&o)[2][64], int r) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      *reinterpret_cast<float2*>(to + 8 * j) =
          float2{o[j / 16][4 * (j % 16) + 2 * r], o[j / 16][4 * (j % 16) + 2 * r + 1]};
    }
  }

  // This warpgroup's half of the rows at `index`: a sequence of out, or a slot of the workspace.
  template <typename T>
  __device__ void store(T* out, int index, const float (&o)[2][64]) {
    const int head = group * kRows + row();
    T* to = out + (static_cast<std::int64_t>(index) * p.heads + head) * kMlaLatent +
            half * (kMlaLatent / 2) + 2 * (thread() % 4);
    if (head < p.heads) store_row(to, o, 0);
    if (head + 8 < p.heads) store_row(to + 8 * kMlaLatent, o, 1);
  }

  __device__ void multiply(float (&o)[2][64], bool accumulate) {
    const std::uint64_t a =
        descriptor_128(shared.second[ring.stage] + (kValuePanels - panel_begin(1)) * kPanelBytes);
    const std::uint64_t b = descriptor_128(values(), 1024, kPanelBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        Wgmma<128>::bf16_ss<0, 1>(o[side], a + (step * 32 >> 4),
                                  b + ((step * 16 * 128 + side * 2 * kPanelBytes) >> 4),
                                  step > 0 || accumulate);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
  }

  // Frees what this warpgroup has read: its side, and the weights in the second.
  __device__ void release() {
    __syncwarp();
    if (thread() % 32 != 0) return;
    if (half == 0) barrier_arrive(&shared.empty_first[first_ring.stage]);
    barrier_arrive(&shared.empty[ring.stage]);
  }

  __device__ void run() {
    float o[2][64];
    while (true) {
      if (half == 0) barrier_wait(&shared.full_first[first_ring.stage], first_ring.phase);
      barrier_wait(&shared.full[ring.stage], ring.phase);
      barrier_wait(&shared.ready[ring.stage], ring.phase);
      const Stage stage = shared.stage[ring.phase][ring.stage];
      const float a = shared.rescale[ring.stage][row()];
      const float b = shared.rescale[ring.stage][row() + 8];
      if (stage.tokens == kEndStage) break;
      if (stage.tokens > 0) {
        if (stage.tokens < kTokens) clear_rows(stage.tokens);
        const bool is_first = stage.flags & kFirstTile;
        if (__any_sync(0xFFFFFFFF, !is_first && (a != 1 || b != 1))) multiply_rows(o, a, b);
        multiply(o, !is_first);
      }
      if (stage.flags & kLastTile) {
        multiply_rows(o, shared.inverse[ring.stage][row()], shared.inverse[ring.stage][row() + 8]);
      }
      release();
      if (stage.flags & kLastTile) {
        if (stage.slot >= 0) {
          store(p.workspace.out, stage.slot, o);
        } else {
          store(p.out, stage.sequence, o);
        }
      }
      ring.advance();
      first_ring.advance();
    }
  }
};

}  // namespace orrery::mla

#pragma once

// The warpgroup of mla_decode that turns a tile of keys into weights.

#include <cmath>

#include "kernels/attention/mla_decode/block.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace orrery::mla {

// The reference maximum follows the scores only when they exceed it by a factor of 2^8.
constexpr float kSlack = 8.0f;

// Softmax over the tiles of a piece, for the two rows of a thread: scores 4 i + 2 row + {0, 1}.
struct Softmax {
  float reference[2];  // what the exponents are relative to, as a score
  float sum[2];        // of this thread's columns

  __device__ void start() {
    reference[0] = reference[1] = -INFINITY;
    sum[0] = sum[1] = 0;
  }
  // Scores to weights in place; `rescale` is what earlier weights must be multiplied by.
  __device__ void apply(float (&s)[kTokens / 2], float scale_log2, float (&rescale)[2]) {
    float largest[2][2];
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) largest[lane / 2][lane % 2] = s[lane];
#pragma unroll
    for (int i = 4; i < kTokens / 2; ++i) {
      float& most = largest[i / 2 % 2][i % 2];
      most = fmaxf(most, s[i]);
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float most = fmaxf(largest[row][0], largest[row][1]);
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 2));
      const bool grows = (most - reference[row]) * scale_log2 > kSlack;
      const float next = grows ? most : reference[row];
      rescale[row] = grows ? exp2_fast((reference[row] - next) * scale_log2) : 1.0f;
      reference[row] = next;
    }
    const float offset[2] = {reference[0] * scale_log2, reference[1] * scale_log2};
    float added[2][2] = {};
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      s[i] = exp2_fast(s[i] * scale_log2 - offset[i / 2 % 2]);
      added[i / 2 % 2][i % 2] += s[i];
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] = sum[row] * rescale[row] + (added[row][0] + added[row][1]);
    }
  }
  __device__ float total(int row) const {
    float all = sum[row];
    all += __shfl_xor_sync(0xFFFFFFFF, all, 1);
    all += __shfl_xor_sync(0xFFFFFFFF, all, 2);
    return all;
  }
};

struct Scores {
  Shared& shared;
  const Parameters& p;
  int group;
  Ring<kStages> ring;
  Ring<kFirstStages> first_ring;

  __device__ std::uint8_t* panel_at(int panel) const {
    return panel < panel_begin(1)
               ? shared.first[first_ring.stage] + panel * kPanelBytes
               : shared.second[ring.stage] + (panel - panel_begin(1)) * kPanelBytes;
  }

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) % kWarpGroup / 32; }

  // Of this lane, in a panel: 16-byte chunks `chunk` and chunk + 1 of its warp's 16 rows.
  __device__ static std::uint8_t* matrix_address(std::uint8_t* panel, int chunk) {
    const int row = 16 * warp() + lane() % 16;
    return panel + row * 128 + (((chunk + lane() / 16) ^ (row & 7)) << 4);
  }

  // This warp's rows: the first panels to registers, the others to shared memory.
  __device__ void load_query(std::uint32_t (&q)[4 * kHeldPanels][4]) {
#pragma unroll
    for (int step = 0; step < 4 * kHeldPanels; ++step) {
      load_matrix_x4(q[step], matrix_address(panel_at(step / 4), step % 4 * 2));
    }
#pragma unroll
    for (int step = 4 * kHeldPanels; step < 4 * kPanels; ++step) {
      std::uint32_t rest[4];
      const int panel = step / 4;
      load_matrix_x4(rest, matrix_address(panel_at(panel), step % 4 * 2));
      store_matrix_x4(
          matrix_address(shared.query + (panel - kHeldPanels) * kPanelBytes, step % 4 * 2), rest[0],
          rest[1], rest[2], rest[3]);
    }
    fence_async_shared();
    named_barrier_sync(1, kWarpGroup);
  }

  // Scores of the stage; its second side may arrive while the first is multiplied.
  __device__ void multiply(float (&s)[kTokens / 2], const std::uint32_t (&q)[4 * kHeldPanels][4]) {
    const std::uint64_t keys[2] = {descriptor_128(panel_at(0)),
                                   descriptor_128(panel_at(panel_begin(1)))};
    const std::uint64_t rest = descriptor_128(shared.query);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4 * kPanels; ++step) {
      if (step == 4 * panel_begin(1)) {
        wgmma_commit();
        barrier_wait(&shared.full[ring.stage], ring.phase);
        wgmma_fence();
      }
      const int side = step >= 4 * panel_begin(1);
      const int offset = step % 4 * 32;
      const std::uint64_t b =
          keys[side] + (((step / 4 - panel_begin(side)) * kPanelBytes + offset) >> 4);
      if (step < 4 * kHeldPanels) {
        Wgmma<kTokens>::bf16_rs(s, q[step], b, step > 0);
      } else {
        Wgmma<kTokens>::bf16_ss(s, rest + (((step / 4 - kHeldPanels) * kPanelBytes + offset) >> 4),
                                b, true);
      }
    }
    wgmma_commit();
    wait(s);
  }
  // Until the scores are there; no use of them may move ahead of it.
  __device__ static void wait(float (&s)[kTokens / 2]) {
    wgmma_wait<0>();
#pragma unroll
    for (float& value : s) asm volatile("" : "+f"(value)::"memory");
  }

  __device__ static void mask(float (&s)[kTokens / 2], int tokens) {
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        if (8 * i + 2 * (lane() % 4) + column >= tokens) {
          s[4 * i + column] = -INFINITY;
          s[4 * i + 2 + column] = -INFINITY;
        }
      }
    }
  }

  // [64 heads, 64 tokens], laid out as a panel.
  __device__ void store_weights(const float (&s)[kTokens / 2]) {
    std::uint8_t* panel = panel_at(kValuePanels);
#pragma unroll
    for (int step = 0; step < kTokens / 16; ++step) {
      const int i = 8 * step;
      store_matrix_x4(matrix_address(panel, 2 * step), pack(s[i], s[i + 1]),
                      pack(s[i + 2], s[i + 3]), pack(s[i + 4], s[i + 5]), pack(s[i + 6], s[i + 7]));
    }
  }

  // What the last tile of a piece leaves: the factor that normalises, and the logarithm.
  __device__ void finish(const Softmax& softmax, const Stage& stage) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float total = softmax.total(row);
      if (lane() % 4 != 0) continue;
      const int at = 16 * warp() + lane() / 4 + 8 * row;
      shared.inverse[ring.stage][at] = __fdividef(1, total);
      const int head = group * kRows + at;
      if (head >= p.heads) continue;
      constexpr float kLog2 = 0.69314718056f;
      const float lse = softmax.reference[row] * p.scale_log2 * kLog2 + __logf(total);
      if (stage.slot >= 0) {
        p.workspace.lse[stage.slot * p.heads + head] = lse;
      } else if (p.lse != nullptr) {
        p.lse[static_cast<std::int64_t>(stage.sequence) * p.heads + head] = lse;
      }
    }
  }

  // Scores of the stage to weights in its last panel.
  __device__ void weigh(float (&s)[kTokens / 2], Softmax& softmax, int tokens) {
    if (tokens < kTokens) mask(s, tokens);
    float rescale[2];
    softmax.apply(s, p.scale_log2, rescale);
    if (lane() % 4 == 0) {
      const int at = 16 * warp() + lane() / 4;
      shared.rescale[ring.stage][at] = rescale[0];
      shared.rescale[ring.stage][at + 8] = rescale[1];
    }
    named_barrier_sync(1, kWarpGroup);  // all have read the panel that the weights replace
    store_weights(s);
    fence_async_shared();
  }

  __device__ void run() {
    std::uint32_t q[4 * kHeldPanels][4];
    Softmax softmax;
    while (true) {
      barrier_wait(&shared.full_first[first_ring.stage], first_ring.phase);
      const Stage stage = shared.stage[ring.phase][ring.stage];
      if (stage.tokens > 0) {
        float s[kTokens / 2];
        multiply(s, q);
        weigh(s, softmax, stage.tokens);
        if (stage.flags & kLastTile) finish(softmax, stage);
      } else {
        // At the end, too: `full` follows on what the values have freed. Without it `ready` could
        // end twice while they still store a piece, and they would wait for it forever.
        barrier_wait(&shared.full[ring.stage], ring.phase);
        if (stage.tokens == kQueryStage) {
          load_query(q);
          softmax.start();
        }
      }
      __syncwarp();
      if (lane() == 0) barrier_arrive(&shared.ready[ring.stage]);
      if (stage.tokens == kEndStage) break;
      ring.advance();
      first_ring.advance();
    }
  }
};

}  // namespace orrery::mla

#pragma once

// What becomes of a warp's sums in the weight-streaming grouped gemm: partial sums for other
// blocks, or rows of y (drawing in streamed_sm90.cu).

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/flags.cuh"
#include "kernels/experts/grouped_gemm/results.cuh"
#include "kernels/experts/grouped_gemm/scatter.cuh"
#include "kernels/experts/grouped_gemm/streamed_ring.cuh"
#include "kernels/experts/grouped_gemm/streamed_schedule.cuh"

namespace orrery::streamed {

constexpr int kMaxConsumerWarps = 8;

// What the threads of a block that multiply have in hand.
struct Consumer {
  const Arguments& a;
  const Pieces& pieces;
  unsigned char* stages;
  std::uint64_t* full;
  std::uint64_t* empty;
  void* outputs;  // of this warp: [tokens][16], as y
  Slot slot;

  [[nodiscard]] __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  [[nodiscard]] __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  // The partial sums of this warp at a position: kTokens / 8 vectors of each lane.
  [[nodiscard]] __device__ float4* partial(int position) const {
    const int warps = static_cast<int>(blockDim.x) / kWarp - 1;
    const std::int64_t at = static_cast<std::int64_t>(position * warps + warp()) * 16;
    return reinterpret_cast<float4*>(a.partials + (at << a.tokens_log2)) + lane();
  }
  [[nodiscard]] __device__ std::uint32_t* flag(int position) const {
    return a.flags + position * kMaxConsumerWarps + warp();
  }
};

__device__ inline void store_release(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// A piece that does not start its item: its sums for who has the start.
template <int kTokens>
__device__ void contribute(const Consumer& c, const float (&sum)[kTokens / 2]) {
  const int position = Pieces::position();
  float4* to = c.partial(position);
#pragma unroll
  for (int i = 0; i < kTokens / 8; ++i) {
    __stcg(to + i * kWarp, float4{sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]});
  }
  __threadfence();
  __syncwarp();
  if (Consumer::lane() == 0) store_release(c.flag(position), 1);
}

// Adds what the following positions have made of an item whose start is here.
template <int kTokens>
__device__ void gather(const Consumer& c, float (&sum)[kTokens / 2]) {
  for (int cut = 1; cut < c.pieces.cuts(); ++cut) {
    const int position = Pieces::position() + cut;
    while (sm90::load_acquire(c.flag(position)) == 0) {
    }
    const float4* from = c.partial(position);
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) {
      const float4 part = __ldcg(from + i * kWarp);
      sum[4 * i] += part.x;
      sum[4 * i + 1] += part.y;
      sum[4 * i + 2] += part.z;
      sum[4 * i + 3] += part.w;
    }
    __syncwarp();
    if (Consumer::lane() == 0) *c.flag(position) = 0;
  }
}

// A load that stays where it stands in the code.
__device__ inline float load_now(const float* address) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
  return value;
}

// Scales of a piece, asked for before its MMAs. A lane has those of two rows of w, and of every
// 32nd token from its own on.
template <int kTokens>
struct Scales {
  static constexpr int kPerLane = (kTokens + kWarp - 1) / kWarp;
  float w[2] = {};
  float x[kPerLane] = {};

  __device__ Scales(const Arguments& a, const Piece& piece, int column) {
    const float* scales = a.w_scale + static_cast<std::int64_t>(piece.group) * a.n;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = column + Consumer::lane() / 4 + 8 * half;
      if (at < a.n) w[half] = load_now(scales + at);
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int token = Consumer::lane() + i * kWarp;
      if (token < piece.tokens) x[i] = load_now(a.x_scale + piece.row + token);
    }
  }
  __device__ void apply(float (&sum)[kTokens / 2]) const {
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = i / 4 * 8 + Consumer::lane() % 4 * 2 + i % 2;
      sum[i] *= w[i % 4 / 2] * __shfl_sync(0xFFFFFFFF, x[i / 4 * 8 / kWarp], token % kWarp);
    }
  }
};

// Rounds this warp's sums, 16 columns of y, to Y and stores them: through shared memory, since a
// lane's neighbouring sums are those of neighbouring tokens.
template <typename Y, int kTokens>
__device__ void store(const Consumer& c, const Piece& piece, int column,
                      const float (&sum)[kTokens / 2]) {
  constexpr int kColumns = 16;
  constexpr int kVector = 8;
  const int lane = Consumer::lane();
  auto* const outputs = static_cast<Y*>(c.outputs);
  __syncwarp();  // the stores of the piece before have read
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
    outputs[token * kColumns + lane / 4 + i % 4 / 2 * 8] = rounded<Y>(sum[i]);
  }
  __syncwarp();
  for (int i = lane; i < piece.tokens * (kColumns / kVector); i += kWarp) {
    const int token = i / (kColumns / kVector);
    const int first = i % (kColumns / kVector) * kVector;
    const Y* from = outputs + token * kColumns + first;
    if (c.a.scatter.out != nullptr) {
      if (column + first < c.a.n) {
        scatter_vector(c.a.scatter, scatter_row(c.a.scatter, piece.row + token, c.a.n),
                       column + first, *reinterpret_cast<const uint4*>(from));
      }
      continue;
    }
    Y* to = static_cast<Y*>(c.a.y) + static_cast<std::int64_t>(piece.row + token) * c.a.n + column +
            first;
    if (c.a.n % kVector == 0) {
      if (column + first < c.a.n)
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < kVector && column + first + j < c.a.n; ++j) to[j] = from[j];
    }
  }
}

}  // namespace orrery::streamed

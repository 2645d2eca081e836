#include <algorithm>
#include <cmath>

#include "kernels/attention/mla_decode/split.h"
#include "kernels/attention/mla_decode/workspace.h"
#include "kernels/cuda/launch.h"

namespace orrery {
namespace {

constexpr int kThreads = kMlaLatent / 4;  // one float4 each
constexpr int kMaxBlocks = 1024;
constexpr int kUnroll = 8;  // loads in flight

// The slot of piece `piece`: only the first begins its sequence.
__device__ std::int64_t slot_of(const MlaPieceRange& pieces, int piece) {
  return 2 * static_cast<std::int64_t>(pieces.first + piece) + (piece == 0 ? 1 : 0);
}

__device__ float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFF, value, step));
  }
  return value;
}
__device__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, step);
  return value;
}

// By one warp: weights[i] = exp(lse_i - lse) of one head's pieces; returns lse.
__device__ float weigh_pieces(const MlaWorkspace& workspace, const MlaPieceRange& pieces, int heads,
                              int head, float* weights) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float largest = -INFINITY;
  for (int piece = lane; piece < pieces.count; piece += 32) {
    weights[piece] = workspace.lse[slot_of(pieces, piece) * heads + head];
    largest = fmaxf(largest, weights[piece]);
  }
  largest = warp_max(largest);
  float sum = 0;
  for (int piece = lane; piece < pieces.count; piece += 32) {
    sum += __expf(weights[piece] - largest);
  }
  const float lse = largest + __logf(warp_sum(sum));
  for (int piece = lane; piece < pieces.count; piece += 32) {
    weights[piece] = __expf(weights[piece] - lse);
  }
  return lse;
}

__device__ void store(bf16* out, float4 value) {
  const __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(value.x, value.y),
                                  __floats2bfloat162_rn(value.z, value.w)};
  reinterpret_cast<__nv_bfloat162*>(out)[0] = pair[0];
  reinterpret_cast<__nv_bfloat162*>(out)[1] = pair[1];
}

// Blocks walk over the heads of their sequence: out = sum of weights[i] out_i, zero without pieces.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(MlaWorkspace workspace, const std::int32_t* lengths, int heads, bf16* out,
                 float* lse) {
  __shared__ float weights[kMlaMaxUnits];
  cudaGridDependencySynchronize();
  const int sequence = static_cast<int>(blockIdx.x);
  const bool is_empty = lengths[sequence] == 0;
  const MlaPieceRange pieces = is_empty ? MlaPieceRange{} : workspace.pieces[sequence];
  if (pieces.count == 1) return;
  for (int head = static_cast<int>(blockIdx.y); head < heads; head += static_cast<int>(gridDim.y)) {
    const std::int64_t row = static_cast<std::int64_t>(sequence) * heads + head;
    __syncthreads();  // the weights of the head before have been read
    if (threadIdx.x < 32) {
      const float all =
          is_empty ? -INFINITY : weigh_pieces(workspace, pieces, heads, head, weights);
      if (lse != nullptr && threadIdx.x == 0) lse[row] = all;
    }
    __syncthreads();
    float4 sum{0, 0, 0, 0};
#pragma unroll kUnroll
    for (int piece = 0; piece < pieces.count; ++piece) {
      const float4 value = reinterpret_cast<const float4*>(
          workspace.out + (slot_of(pieces, piece) * heads + head) * kMlaLatent)[threadIdx.x];
      sum.x += weights[piece] * value.x;
      sum.y += weights[piece] * value.y;
      sum.z += weights[piece] * value.z;
      sum.w += weights[piece] * value.w;
    }
    store(out + row * kMlaLatent + threadIdx.x * 4, sum);
  }
}

}  // namespace

void mla_merge(const cuda::Stream& stream, const MlaWorkspace& workspace,
               const std::int32_t* lengths, const MlaDecodeDims& dims, bf16* out, float* lse) {
  const int per_sequence = std::max(1, std::min(dims.heads, kMaxBlocks / dims.sequences));
  cuda::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(dims.sequences), static_cast<unsigned>(per_sequence)),
       .block = dim3(kThreads),
       .programmatic = true},
      merge_kernel, workspace, lengths, dims.heads, out, lse);
}

}  // namespace orrery

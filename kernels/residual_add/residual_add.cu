#include <algorithm>
#include <stdexcept>

#include "kernels/cuda/launch.h"
#include "kernels/residual_add/residual_add.h"

namespace orrery {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // bf16 in one 16-byte access
constexpr int kVectorsPerThread = 4;

__device__ void add(bf16* residual, const bf16* x) {
  *residual = __float2bfloat16_rn(__bfloat162float(*residual) + __bfloat162float(*x));
}

// Each block adds kVectorsPerThread stretches of kThreads vectors, all loads ahead of the first
// sum; the last block also adds what is left of a vector.
__global__ void __launch_bounds__(kThreads)
    add_kernel(bf16* residual, const bf16* x, std::int64_t count) {
  const std::int64_t vectors = count / kVector;
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * kThreads * kVectorsPerThread + threadIdx.x;
  uint4 a[kVectorsPerThread];
  uint4 b[kVectorsPerThread];
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    const std::int64_t at = first + i * kThreads;
    if (at >= vectors) continue;
    a[i] = reinterpret_cast<const uint4*>(residual)[at];
    b[i] = reinterpret_cast<const uint4*>(x)[at];
  }
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    const std::int64_t at = first + i * kThreads;
    if (at >= vectors) continue;
#pragma unroll
    for (int element = 0; element < kVector; ++element) {
      add(reinterpret_cast<bf16*>(&a[i]) + element, reinterpret_cast<const bf16*>(&b[i]) + element);
    }
    reinterpret_cast<uint4*>(residual)[at] = a[i];
  }
  const std::int64_t tail = vectors * kVector + threadIdx.x;
  if (blockIdx.x + 1 == gridDim.x && tail < count) add(residual + tail, x + tail);
}

}  // namespace

void residual_add(const cuda::Stream& stream, bf16* residual, const bf16* x, std::int64_t tokens,
                  std::int64_t hidden) {
  if ((reinterpret_cast<std::uintptr_t>(residual) | reinterpret_cast<std::uintptr_t>(x)) % 16 !=
      0) {
    throw std::invalid_argument("residual_add: pointers must be 16-byte aligned");
  }
  const std::int64_t count = tokens * hidden;
  if (count == 0) return;
  constexpr std::int64_t kPerBlock =
      static_cast<std::int64_t>(kThreads) * kVectorsPerThread * kVector;
  const auto blocks = static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  cuda::launch(stream, {.grid = dim3(blocks), .block = dim3(kThreads)}, add_kernel, residual, x,
               count);
}

}  // namespace orrery

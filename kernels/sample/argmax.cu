#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/sample/logits.cuh"
#include "kernels/sample/sample.h"

namespace orrery {
namespace {

constexpr int kThreads = 512;
constexpr int kVectors = 4;  // in flight per thread
constexpr unsigned kMostCluster = 8;

__device__ Key warp_largest(Key key) {
#pragma unroll
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
    key = max(key, __shfl_xor_sync(0xFFFFFFFFU, key, lanes));
  }
  return key;
}

// The largest value of a vector in the order of floats (NaN is skipped).
template <typename T>
__device__ float largest(const LogitVector<T>& vector) {
  float values[LogitVector<T>::kSize];
  vector.values(values);
  float most = values[0];
#pragma unroll
  for (const float value : values) most = fmaxf(most, value);
  return most;
}

// Key of the first element of the vector that equals `most`.
template <typename T>
__device__ Key key_in(const LogitVector<T>& vector, float most, std::int64_t index) {
  constexpr int kSize = LogitVector<T>::kSize;
  float values[kSize];
  vector.values(values);
  std::uint32_t at = 0;
#pragma unroll
  for (int i = kSize - 1; i >= 0; --i) {
    if (values[i] == most) at = i;
  }
  return key_of(most, static_cast<std::uint32_t>(index * kSize) + at);
}

// The largest key of vectors first, first + stride, … of a row: a maximum per vector, and the
// vector kept where it rises, so that ids cost nothing per element.
template <typename T>
__device__ Key largest_of(const T* row, std::int64_t first, std::int64_t stride,
                          std::int64_t vectors) {
  LogitVector<T> best{};
  float most = -INFINITY;
  std::int64_t best_at = -1;
  for (std::int64_t at = first; at < vectors; at += kVectors * stride) {
    LogitVector<T> batch[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (at + i * stride < vectors) batch[i].load(row, at + i * stride);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (at + i * stride >= vectors) continue;
      const float here = largest(batch[i]);
      if (here > most) {
        most = here;
        best = batch[i];
        best_at = at + i * stride;
      }
    }
  }
  return best_at < 0 ? 0 : key_in(best, most, best_at);
}

// A cluster of blocks per row, each over a share of its vectors; the blocks' largest keys meet in
// the shared memory of the first:
//
//   row  | block 0 | block 1 | … |  ->  threads -> warps -> block -> keys[rank] of block 0 -> id
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const T* logits, std::int32_t* ids, std::int64_t vocab) {
  __shared__ Key of_warps[kThreads / kWarpSize];
  __shared__ Key of_blocks[kMostCluster];
  sm90::cluster_arrive_relaxed();  // this block has started
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const unsigned blocks = gridDim.x;
  const T* const row = logits + blockIdx.y * vocab;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(blocks) * kThreads;
  Key key = 0;
  if constexpr (kAligned) {
    key = largest_of(row, first, stride, vocab / LogitVector<T>::kSize);
  } else {
    for (std::int64_t i = first; i < vocab; i += stride) {
      key = max(key, key_of(as_float(row[i]), static_cast<std::uint32_t>(i)));
    }
  }
  // A row with nothing above -infinity gives its first id.
  if (first == 0) key = max(key, key_of(-INFINITY, 0));
  key = warp_largest(key);
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = key;
  __syncthreads();
  sm90::cluster_wait();  // so have all
  if (threadIdx.x < kWarpSize) {
    key = threadIdx.x < kThreads / kWarpSize ? of_warps[threadIdx.x] : 0;
    key = warp_largest(key);
    if (threadIdx.x == 0) sm90::store_cluster(&of_blocks[blockIdx.x], key, 0);
  }
  sm90::cluster_sync();
  if (blockIdx.x == 0 && threadIdx.x < kWarpSize) {
    key = threadIdx.x < blocks ? of_blocks[threadIdx.x] : 0;
    key = warp_largest(key);
    if (threadIdx.x == 0) ids[blockIdx.y] = static_cast<std::int32_t>(id_of(key));
  }
}

template <typename T>
void argmax(const cuda::Stream& stream, const T* logits, std::int32_t* ids, std::int64_t seqs,
            std::int64_t vocab) {
  if (seqs == 0 || vocab == 0) return;
  const bool aligned = vocab % LogitVector<T>::kSize == 0 && vector_aligned(logits);
  const std::int64_t per_block = kThreads * (aligned ? LogitVector<T>::kSize : std::int64_t{1});
  unsigned cluster = 1;
  while (cluster < kMostCluster && cluster * per_block < vocab) cluster *= 2;
  constexpr std::int64_t kMostGridY = 65535;
  for (std::int64_t seq = 0; seq < seqs; seq += kMostGridY) {
    const auto rows = static_cast<unsigned>(std::min(seqs - seq, kMostGridY));
    cuda::launch(stream,
                 {.grid = dim3(cluster, rows),
                  .block = dim3(kThreads),
                  .cluster = cluster,
                  .programmatic = true},
                 aligned ? argmax_kernel<T, true> : argmax_kernel<T, false>, logits + seq * vocab,
                 ids + seq, vocab);
  }
}

}  // namespace

void sample_argmax(const cuda::Stream& stream, const bf16* logits, std::int32_t* ids,
                   std::int64_t seqs, std::int64_t vocab) {
  argmax(stream, logits, ids, seqs, vocab);
}

void sample_argmax(const cuda::Stream& stream, const float* logits, std::int32_t* ids,
                   std::int64_t seqs, std::int64_t vocab) {
  argmax(stream, logits, ids, seqs, vocab);
}

}  // namespace orrery

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/rows/sample/logits.cuh"
#include "kernels/rows/sample/sample.h"
#include "kernels/rows/sample/shape.h"

namespace orrery {
namespace {

// What a thread has seen: its largest value and the part of the row where it first stood.
struct Seen {
  float most = -INFINITY;
  std::int64_t at = -1;
};

template <typename T, bool kAligned>
__device__ Seen largest_of(const T* row, std::int64_t vocab, std::int64_t thread,
                           std::int64_t threads) {
  Seen seen;
  const auto see = [&](float value, std::int64_t at) {
    if (!(value > seen.most)) return;
    seen.most = value;
    seen.at = at;
  };
  if constexpr (kAligned) {
    for_each_vector(
        row, vocab / LogitVector<T>::kSize, thread, threads,
        [&](const LogitVector<T>& vector, std::int64_t at) { see(vector.largest(), at); });
  } else {
    for (std::int64_t i = thread; i < vocab; i += threads) see(as_float(row[i]), i);
  }
  return seen;
}

// The first id at seen.at that holds seen.most; read again, since few threads are asked.
template <typename T, bool kAligned>
__device__ std::uint32_t id_in(const T* row, const Seen& seen) {
  constexpr int kSize = kAligned ? LogitVector<T>::kSize : 1;
  const std::int64_t first = seen.at * kSize;
  for (int i = 0; i < kSize; ++i) {
    if (as_float(row[first + i]) == seen.most) return static_cast<std::uint32_t>(first + i);
  }
  return ~0U;
}

// A cluster of blocks per row, each over a share of it. Threads keep a value and its place per
// vector, so that ids cost nothing per element; who holds the block's largest looks up its id. The
// blocks' keys meet in the shared memory of the first:
//
//   row  | block 0 | block 1 | … |  ->  threads -> warps -> block -> keys[rank] of block 0 -> id
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kMostArgmaxThreads)
    argmax_kernel(const T* logits, std::int32_t* ids, std::int64_t vocab) {
  __shared__ std::uint32_t of_warps[kMostArgmaxThreads / kWarpSize];
  __shared__ std::uint32_t block_id;
  __shared__ Key of_blocks[kMostArgmaxCluster];
  sm90::cluster_arrive_relaxed();  // this block has started
  begin_dependent();
  const T* const row = logits + blockIdx.y * vocab;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const Seen seen = largest_of<T, kAligned>(row, vocab, thread,
                                            static_cast<std::int64_t>(gridDim.x) * blockDim.x);
  const std::uint32_t own = ordered(seen.most);
  const std::uint32_t of_warp = __reduce_max_sync(0xFFFFFFFFU, own);
  const unsigned lane = threadIdx.x % kWarpSize;
  if (lane == 0) of_warps[threadIdx.x / kWarpSize] = of_warp;
  if (threadIdx.x == 0) block_id = ~0U;
  __syncthreads();
  const std::uint32_t of_block =
      __reduce_max_sync(0xFFFFFFFFU, lane < blockDim.x / kWarpSize ? of_warps[lane] : 0);
  if (own == of_block && seen.at >= 0) atomicMin(&block_id, id_in<T, kAligned>(row, seen));
  // A row with nothing above -infinity gives its first id.
  if (own == of_block && seen.at < 0 && thread == 0) atomicMin(&block_id, 0U);
  __syncthreads();
  sm90::cluster_wait();  // all blocks have started
  if (threadIdx.x == 0) {
    sm90::store_cluster(&of_blocks[blockIdx.x], key_of(of_block, block_id), 0);
  }
  sm90::cluster_sync();
  if (thread == 0) {
    Key key = 0;
    for (unsigned block = 0; block < gridDim.x; ++block) key = max(key, of_blocks[block]);
    ids[blockIdx.y] = static_cast<std::int32_t>(id_of(key));
  }
}

template <typename T>
void argmax(const cuda::Stream& stream, const T* logits, std::int32_t* ids, std::int64_t seqs,
            std::int64_t vocab) {
  if (seqs == 0 || vocab == 0) return;
  const bool aligned = vocab % LogitVector<T>::kSize == 0 && vector_aligned(logits);
  const ArgmaxShape shape = argmax_shape(seqs, aligned ? vocab / LogitVector<T>::kSize : vocab);
  constexpr std::int64_t kMostGridY = 65535;
  for (std::int64_t seq = 0; seq < seqs; seq += kMostGridY) {
    const auto rows = static_cast<unsigned>(std::min(seqs - seq, kMostGridY));
    cuda::launch(stream,
                 {.grid = dim3(shape.cluster, rows),
                  .block = dim3(shape.threads),
                  .cluster = shape.cluster,
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

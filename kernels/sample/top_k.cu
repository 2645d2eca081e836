#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/logits.cuh"
#include "kernels/sample/random.h"
#include "kernels/sample/sample.h"

namespace orrery {
namespace {

constexpr int kThreads = 1024;
constexpr int kVectors = 4;
constexpr int kCapacity = 4096;  // keys that shared memory holds

// Calls visit(key) for each element of the row that falls to this thread: always the same ones.
template <typename T, bool kAligned, typename Visit>
__device__ void for_each_key(const T* row, std::int64_t vocab, Visit&& visit) {
  if constexpr (!kAligned) {
    for (std::int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      visit(as_float(row[i]), static_cast<std::uint32_t>(i));
    }
  } else {
    constexpr int kSize = LogitVector<T>::kSize;
    const std::int64_t vectors = vocab / kSize;
    for (std::int64_t at = threadIdx.x; at < vectors; at += kVectors * kThreads) {
      LogitVector<T> batch[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (at + i * kThreads < vectors) batch[i].load(row, at + i * kThreads);
      }
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (at + i * kThreads >= vectors) continue;
        float values[kSize];
        batch[i].values(values);
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          visit(values[j], static_cast<std::uint32_t>((at + i * kThreads) * kSize + j));
        }
      }
    }
  }
}

// The largest key that at least `k` of the threads' keys reach, bit by bit from the top; ids of at
// most `id_bits` bits.
__device__ Key kth_largest(Key key, int k, int id_bits) {
  Key found = 0;
  for (int bit = 63; bit >= 0; --bit) {
    // The upper bits of ~id are ones in every key.
    const Key candidate = found | Key{1} << bit;
    if (bit < 32 && bit >= id_bits) {
      found = candidate;
    } else if (__syncthreads_count(key >= candidate) >= k) {
      found = candidate;
    }
  }
  return found;
}

struct Shared {
  Key keys[kCapacity];
  Key sorted[kMostTopK];
  double cumulated[kMostTopK / kWarpSize];
  int count;
};

// A key that at least k and at most kCapacity keys of the row reach, given one that at least k do.
// The k-th largest of the threads' largest is nearly always it: only where a few threads hold far
// more than their share of large logits is the gap halved further, at a pass over the row each.
template <typename T, bool kAligned>
__device__ Key collect(Shared& shared, const T* row, std::int64_t vocab, Key low, int k) {
  Key high = ~Key{0};  // reached by fewer than k
  Key threshold = low;
  while (true) {
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    const float least = value_of(threshold);
    for_each_key<T, kAligned>(row, vocab, [&](float value, std::uint32_t id) {
      if (value < least) return;
      const Key key = key_of(value, id);
      if (key < threshold) return;
      const int at = atomicAdd(&shared.count, 1);
      if (at < kCapacity) shared.keys[at] = key;
    });
    __syncthreads();
    const int count = shared.count;
    __syncthreads();
    if (count >= k && count <= kCapacity) return threshold;
    (count < k ? high : low) = threshold;
    threshold = low + (high - low) / 2;
  }
}

// Sum of this value and those of the warp's lower lanes.
__device__ double warp_cumulated(double value) {
  const unsigned lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (unsigned lanes = 1; lanes < kWarpSize; lanes *= 2) {
    const double below = __shfl_up_sync(0xFFFFFFFFU, value, lanes);
    if (lane >= lanes) value += below;
  }
  return value;
}

// The first of k sorted keys at which the cumulated probability exceeds `chance`, by the block's
// first kMostTopK threads: thread i holds key i. The cumulated sums are in double.
__device__ void choose(Shared& shared, int k, float temperature, double chance, std::int32_t* id) {
  const auto i = static_cast<int>(threadIdx.x);
  double weight = 0;
  if (i < k) {
    const float gap = value_of(shared.sorted[i]) - value_of(shared.sorted[0]);
    weight = i == 0 ? 1.0 : exp(static_cast<double>(gap) / static_cast<double>(temperature));
  }
  double upto = 0;
  if (i < kMostTopK) {
    upto = warp_cumulated(weight);
    if (i % kWarpSize == kWarpSize - 1) shared.cumulated[i / kWarpSize] = upto;
  }
  if (i == 0) shared.count = k - 1;
  __syncthreads();
  if (i < k) {
    double total = 0;
    for (int warp = 0; warp < kMostTopK / kWarpSize; ++warp) {
      if (warp == i / kWarpSize) upto += total;
      total += shared.cumulated[warp];
    }
    if (upto > chance * total) atomicMin(&shared.count, i);
  }
  __syncthreads();
  if (i == 0) *id = static_cast<std::int32_t>(id_of(shared.sorted[shared.count]));
}

// A block per row, which is read twice, the second time mostly from the L2 cache:
//   1  each thread's largest key; the k-th largest of those is a lower bound of the row's k-th
//   2  all keys that reach the bound into shared memory: k and a few more
//   3  their rank by counting, the first k in order
//   4  softmax, cumulated sum, choice
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    top_k_kernel(const T* logits, const std::uint64_t* counters, std::int32_t* ids,
                 std::int64_t vocab, int k, int id_bits, float temperature, std::uint64_t seed) {
  __shared__ Shared shared;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  const T* const row = logits + blockIdx.x * vocab;
  float most = -INFINITY;
  std::uint32_t most_at = ~0U;
  for_each_key<T, kAligned>(row, vocab, [&](float value, std::uint32_t id) {
    if (value > most || most_at == ~0U) {
      most = fmaxf(value, -INFINITY);  // NaN counts as -infinity
      most_at = id;
    }
  });
  const Key own = most_at == ~0U ? 0 : key_of(most, most_at);
  collect<T, kAligned>(shared, row, vocab, kth_largest(own, k, id_bits), k);
  const int count = shared.count;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const Key key = shared.keys[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += shared.keys[j] > key ? 1 : 0;
    if (rank < k) shared.sorted[rank] = key;
  }
  __syncthreads();
  choose(shared, k, temperature, uniform(seed, counters[blockIdx.x]), ids + blockIdx.x);
}

template <typename T>
void top_k(const cuda::Stream& stream, const T* logits, const std::uint64_t* counters,
           std::int32_t* ids, std::int64_t seqs, std::int64_t vocab, const TopKOptions& options) {
  if (options.k < 1 || options.k > kMostTopK) {
    throw std::invalid_argument("sample_top_k: k is " + std::to_string(options.k) +
                                ", expected 1 to " + std::to_string(kMostTopK));
  }
  if (!(options.temperature > 0)) {
    throw std::invalid_argument("sample_top_k: temperature is " +
                                std::to_string(options.temperature) +
                                ", expected a positive one (sample_argmax is greedy)");
  }
  if (seqs == 0 || vocab == 0) return;
  int id_bits = 1;
  while ((std::int64_t{1} << id_bits) < vocab) ++id_bits;
  const bool aligned = vocab % LogitVector<T>::kSize == 0 && vector_aligned(logits);
  const int k = static_cast<int>(std::min<std::int64_t>(options.k, vocab));
  cuda::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(seqs)), .block = dim3(kThreads), .programmatic = true},
      aligned ? top_k_kernel<T, true> : top_k_kernel<T, false>, logits, counters, ids, vocab, k,
      id_bits, options.temperature, options.seed);
}

}  // namespace

void sample_top_k(const cuda::Stream& stream, const bf16* logits, const std::uint64_t* counters,
                  std::int32_t* ids, std::int64_t seqs, std::int64_t vocab,
                  const TopKOptions& options) {
  top_k(stream, logits, counters, ids, seqs, vocab, options);
}

void sample_top_k(const cuda::Stream& stream, const float* logits, const std::uint64_t* counters,
                  std::int32_t* ids, std::int64_t seqs, std::int64_t vocab,
                  const TopKOptions& options) {
  top_k(stream, logits, counters, ids, seqs, vocab, options);
}

}  // namespace orrery

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/programmatic.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rows/sample/logits.cuh"
#include "kernels/rows/sample/random.h"
#include "kernels/rows/sample/sample.h"

namespace orrery {
namespace {

constexpr int kThreads = 1024;
constexpr int kCapacity = 4096;  // keys that shared memory holds

// The thread's largest value by its ordered bits; 0 where it has none.
template <typename T, bool kAligned>
__device__ std::uint32_t largest_of(const T* row, std::int64_t vocab) {
  std::uint32_t most = 0;  // below every value
  if constexpr (kAligned) {
    for_each_vector(row, vocab / LogitVector<T>::kSize, threadIdx.x, kThreads,
                    [&](const LogitVector<T>& vector, std::int64_t) {
                      most = max(most, ordered(vector.largest()));
                    });
  } else {
    for (std::int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      most = max(most, ordered(as_float(row[i])));
    }
  }
  return most;
}

// Calls visit(value, id) for the thread's share of the row, or less: vectors wholly below `least`
// are left out.
template <typename T, bool kAligned, typename Visit>
__device__ void for_each_from(const T* row, std::int64_t vocab, float least, Visit&& visit) {
  if constexpr (!kAligned) {
    for (std::int64_t i = threadIdx.x; i < vocab; i += kThreads) {
      visit(as_float(row[i]), static_cast<std::uint32_t>(i));
    }
  } else {
    constexpr int kSize = LogitVector<T>::kSize;
    for_each_vector(row, vocab / kSize, threadIdx.x, kThreads,
                    [&](const LogitVector<T>& vector, std::int64_t at) {
                      if (vector.largest() < least) return;
                      float values[kSize];
                      vector.values(values);
#pragma unroll
                      for (int i = 0; i < kSize; ++i) {
                        visit(values[i], static_cast<std::uint32_t>(at * kSize + i));
                      }
                    });
  }
}

// The k-th largest of the threads' values, bit by bit from the top; the lowest kIgnored bits are
// rounded down.
template <int kIgnored>
__device__ std::uint32_t kth_largest(std::uint32_t value, int k) {
  std::uint32_t found = 0;
  for (int bit = 31; bit >= kIgnored; --bit) {
    const std::uint32_t candidate = found | 1U << bit;
    if (__syncthreads_count(value >= candidate) >= k) found = candidate;
  }
  return found;
}

struct Shared {
  Key keys[kCapacity];
  Key sorted[kMostTopK];
  double cumulated[kMostTopK / kWarpSize];
  int count;
};

// Gathers at least k and at most kCapacity keys of the row: those that reach a threshold. At `low`
// at least k do, and nearly always few more; only where the row's largest lie with few threads, or
// many are equal, the threshold is raised further, at a pass over the row each.
template <typename T, bool kAligned>
__device__ void collect(Shared& shared, const T* row, std::int64_t vocab, Key low, int k) {
  Key high = ~Key{0};  // reached by fewer than k
  Key threshold = low;
  while (true) {
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    const float least = value_of(threshold);
    for_each_from<T, kAligned>(row, vocab, least, [&](float value, std::uint32_t id) {
      if (value < least) return;
      const Key key = key_of(ordered(value), id);
      if (key < threshold) return;
      const int at = atomicAdd(&shared.count, 1);
      if (at < kCapacity) shared.keys[at] = key;
    });
    __syncthreads();
    const int count = shared.count;
    __syncthreads();
    if (count >= k && count <= kCapacity) return;
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
//   1  each thread's largest value; the k-th largest of those is a lower bound of the row's k-th
//   2  all keys that reach the bound into shared memory: k and a few more
//   3  their rank by counting, the first k in order
//   4  softmax, cumulated sum, choice
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    top_k_kernel(const T* logits, const std::uint64_t* counters, std::int32_t* ids,
                 std::int64_t vocab, int k, float temperature, std::uint64_t seed) {
  __shared__ Shared shared;
  begin_dependent();
  const T* const row = logits + blockIdx.x * vocab;
  // Equal values share a threshold, whatever their ids; of bf16 only the upper half of the bits
  // differs.
  constexpr int kIgnored = sizeof(T) == sizeof(bf16) ? 16 : 0;
  const std::uint32_t bound = kth_largest<kIgnored>(largest_of<T, kAligned>(row, vocab), k);
  collect<T, kAligned>(shared, row, vocab, static_cast<Key>(bound) << 32, k);
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
  const bool aligned = vocab % LogitVector<T>::kSize == 0 && vector_aligned(logits);
  const int k = static_cast<int>(std::min<std::int64_t>(options.k, vocab));
  cuda::launch(
      stream,
      {.grid = dim3(static_cast<unsigned>(seqs)), .block = dim3(kThreads), .programmatic = true},
      aligned ? top_k_kernel<T, true> : top_k_kernel<T, false>, logits, counters, ids, vocab, k,
      options.temperature, options.seed);
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

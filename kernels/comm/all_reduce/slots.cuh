#pragma once

// What the all-reduce kernels share: slots whose data is its own flag, 16-byte vectors of arrays of
// any length, and the count of calls (all_reduce.cu has the protocol).

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/comm/all_reduce/all_reduce.h"
#include "kernels/cuda/dtypes.h"

namespace orrery {

inline constexpr std::uint32_t kFree = 0xFFFFFFFF;
inline constexpr std::uint32_t kOtherNan = 0x7FFF7FFF;  // what a sender writes in its place

__device__ inline uint4 load_slot(const uint4* slot) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(slot));
  return value;
}

__device__ inline void store_slot(uint4* slot, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(slot), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ inline bool is_full(const uint4& value) {
  return value.x != kFree && value.y != kFree && value.z != kFree && value.w != kFree;
}

__device__ inline uint4 without_free(uint4 value) {
  value.x = value.x == kFree ? kOtherNan : value.x;
  value.y = value.y == kFree ? kOtherNan : value.y;
  value.z = value.z == kFree ? kOtherNan : value.z;
  value.w = value.w == kFree ? kOtherNan : value.w;
  return value;
}

// Waits with one deadline for all that a thread receives.
class Receiver {
 public:
  __device__ explicit Receiver(const AllReducePeers& peers) : peers_(peers) { begin_ = clock64(); }

  // Fills values[u][q] from slot(u, q) wherever is_sent(u, q), looking at all that are missing at
  // once, and frees the slots.
  template <int kBatches, int kRanks, typename IsSent, typename Slot>
  __device__ void receive(uint4 (&values)[kBatches][kRanks], const IsSent& is_sent,
                          const Slot& slot) {
    std::uint32_t sent = 0;
    for_each<kBatches, kRanks>([&](int u, int q, std::uint32_t bit) {
      values[u][q] = make_uint4(0, 0, 0, 0);
      if (is_sent(u, q)) sent |= bit;
    });
    for (std::uint32_t missing = sent; missing != 0 && !gave_up_;) {
      for_each<kBatches, kRanks>([&](int u, int q, std::uint32_t bit) {
        if ((missing & bit) != 0) values[u][q] = load_slot(slot(u, q));
      });
      for_each<kBatches, kRanks>([&](int u, int q, std::uint32_t bit) {
        if (is_full(values[u][q])) missing &= ~bit;
      });
      const std::int64_t waited = clock64() - begin_;
      if (waited > kPatience && missing != 0 && (waited > peers_.timeout_cycles || is_over())) {
        gave_up_ = true;
        const std::uint32_t call = load_word(peers_.calls + blockIdx.x);
        if (atomicCAS(peers_.timed_out, 0U, call) == 0) *peers_.noticed = call;
      }
    }
    for_each<kBatches, kRanks>([&](int u, int q, std::uint32_t bit) {
      if ((sent & bit) != 0) *slot(u, q) = make_uint4(kFree, kFree, kFree, kFree);
      if (gave_up_) values[u][q] = make_uint4(kFree, kFree, kFree, kFree);
    });
  }

 private:
  template <int kBatches, int kRanks, typename Visit>
  static __device__ void for_each(const Visit& visit) {
#pragma unroll
    for (int u = 0; u < kBatches; ++u) {
#pragma unroll
      for (int q = 0; q < kRanks; ++q) visit(u, q, 1u << (u * kRanks + q));
    }
  }

  // Cycles that a wait takes at most while all is well, about 1 ms: until then nothing else is
  // read.
  static constexpr std::int64_t kPatience = std::int64_t{1} << 21;

  static __device__ std::uint32_t load_word(const std::uint32_t* word) {
    std::uint32_t value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
  }
  // An earlier call gave up, or the host wants all to.
  [[nodiscard]] __device__ bool is_over() const { return load_word(peers_.timed_out) != 0; }

  const AllReducePeers& peers_;
  std::int64_t begin_ = 0;
  bool gave_up_ = false;
};

template <typename T>
constexpr int kPerVector = 16 / sizeof(T);
template <typename T>  // an element as an integer
using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;

// Vector `index` of an array of `count`, zeros past its end.
template <typename T>
__device__ inline uint4 load_vector(const T* data, std::int64_t index, std::int64_t count) {
  const std::int64_t first = index * kPerVector<T>;
  if (first + kPerVector<T> <= count) return reinterpret_cast<const uint4*>(data)[index];
  const Bits<T>* const bits = reinterpret_cast<const Bits<T>*>(data);
  const auto word = [&](int i) -> std::uint32_t {
    std::uint32_t value = 0;
#pragma unroll
    for (int part = 0; part < static_cast<int>(4 / sizeof(T)); ++part) {
      const std::int64_t at = first + i * static_cast<int>(4 / sizeof(T)) + part;
      if (at < count) value |= static_cast<std::uint32_t>(bits[at]) << (part * 16);
    }
    return value;
  };
  return make_uint4(word(0), word(1), word(2), word(3));
}

template <typename T>
__device__ inline void store_vector(T* data, std::int64_t index, std::int64_t count,
                                    const uint4& vector) {
  const std::int64_t first = index * kPerVector<T>;
  if (first + kPerVector<T> <= count) {
    reinterpret_cast<uint4*>(data)[index] = vector;
    return;
  }
  Bits<T>* const bits = reinterpret_cast<Bits<T>*>(data);
  const auto store_word = [&](int i, std::uint32_t value) {
#pragma unroll
    for (int part = 0; part < static_cast<int>(4 / sizeof(T)); ++part) {
      const std::int64_t at = first + i * static_cast<int>(4 / sizeof(T)) + part;
      if (at < count) bits[at] = static_cast<Bits<T>>(value >> (part * 16));
    }
  };
  store_word(0, vector.x);
  store_word(1, vector.y);
  store_word(2, vector.z);
  store_word(3, vector.w);
}

// In rank order, in fp32, rounded once.
template <typename T, int kRanks>
__device__ inline uint4 sum(const uint4 (&vectors)[kRanks], int num_ranks) {
  float sums[kPerVector<T>];
#pragma unroll
  for (int i = 0; i < kPerVector<T>; ++i) {
    sums[i] = static_cast<float>(reinterpret_cast<const T*>(&vectors[0])[i]);
  }
#pragma unroll
  for (int rank = 1; rank < kRanks; ++rank) {
    if (rank >= num_ranks) continue;
#pragma unroll
    for (int i = 0; i < kPerVector<T>; ++i) {
      sums[i] += static_cast<float>(reinterpret_cast<const T*>(&vectors[rank])[i]);
    }
  }
  uint4 result;
#pragma unroll
  for (int i = 0; i < kPerVector<T>; ++i) reinterpret_cast<T*>(&result)[i] = T(sums[i]);
  return result;
}

// Which half this call uses, and the count for the next one. Every block counts for itself; block
// 0 for those that this grid lacks, so that all counts stay equal whatever the grids.
__device__ inline int begin_call(const AllReducePeers& peers) {
  const std::uint32_t call = peers.calls[blockIdx.x];
  __syncthreads();  // all have read it
  if (threadIdx.x == 0) peers.calls[blockIdx.x] = call + 1;
  if (blockIdx.x == 0) {
    for (int block = gridDim.x + threadIdx.x; block < kMaxAllReduceBlocks; block += blockDim.x) {
      peers.calls[block] = call + 1;
    }
  }
  return static_cast<int>(call & 1);
}

__device__ inline uint4* half_of(const AllReducePeers& peers, int rank, int half) {
  return reinterpret_cast<uint4*>(peers.slots[rank] + half * peers.half_bytes);
}

// The k-th rank after this one: when all push in this order, no two push to the same rank at once.
__device__ inline int peer_after(const AllReducePeers& peers, int k) {
  const int rank = peers.rank + k;
  return rank < peers.num_ranks ? rank : rank - peers.num_ranks;
}

__device__ inline uint4 select(bool first, const uint4& a, const uint4& b) {
  return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

// Vectors that a thread has in flight at once.
template <int kRanks>
constexpr int kBatch = kRanks <= 2   ? 4
                       : kRanks <= 4 ? 2
                                     : 1;

}  // namespace orrery

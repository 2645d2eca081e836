#pragma once

// Parts of the prefill kernel: what an instance is compiled for, its shared memory, and what a
// warpgroup does with one tile of keys and values.

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "kernels/attention/attention_prefill/schedule.h"
#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace orrery::prefill {

// What one instance of the kernel is compiled for.
template <int kQkDim_, int kVDim_, int kConsumers_, int kQStages_, int kKvStages_, bool kPaged_,
          int kRotated_ = 0, bool kBounded_ = false>
struct Config {
  static constexpr int kQkDim = kQkDim_;          // elements of a query and a key
  static constexpr int kVDim = kVDim_;            // elements of a value
  static constexpr int kConsumers = kConsumers_;  // warpgroups that compute, 64 rows each
  static constexpr int kQStages = kQStages_;      // query tiles in shared memory
  static constexpr int kKvStages = kKvStages_;    // key tiles, value tiles
  static constexpr bool kPaged = kPaged_;
  static constexpr int kRotated = kRotated_;  // last elements of a key, that lie in another tensor
  // Rows may see fewer keys than those up to their own: a register that others do not have room
  // for.
  static constexpr bool kBounded = kBounded_;
  static constexpr int kRows = 64 * kConsumers;  // of a query tile
  static constexpr int kKeys = 128;              // of a key or value tile
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;
};

inline constexpr int kPanel = 64;  // bf16 in one 128-byte row of a swizzled tile

// Copies' maps: queries in boxes of 64 rows, keys and values in boxes of kKeys rows or of one panel
// of one page.
struct Maps {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap rotated;  // last part of keys where a Config has one, likewise
};

struct Arguments {
  const PrefillTile* tiles = nullptr;
  int num_tiles = 0;        // of one head
  int* counters = nullptr;  // tiles taken, blocks done; both 0 before and after a launch
  bf16* out = nullptr;      // [tokens, heads, kVDim]
  float* lse = nullptr;     // [tokens, heads] or null
  int heads = 0;
  int heads_per_kv = 1;
  int heads_per_rotated = 1;  // as many key heads share the last part of keys
  float scale_log2 = 0;       // softmax scale times log2(e)
  int window = kNoWindow;
  const std::int32_t* block_table = nullptr;  // kPaged: as in PagedKv
  std::int64_t blocks_per_sequence = 0;
  int block_size = 0;
};

// A tile as the producer hands it to the consumers; rows = 0 ends the kernel.
struct Task {
  int query_row;
  int rows;
  int position;
  int keys;
  int head;
};

template <typename C>
struct Shared {
  alignas(1024) bf16 q[C::kQStages][C::kConsumers][64 * C::kQkDim];
  alignas(1024) bf16 k[C::kKvStages][C::kKeys * C::kQkDim];
  alignas(1024) bf16 v[C::kKvStages][C::kKeys * C::kVDim];
  Task task[C::kQStages];
  std::uint64_t q_full[C::kQStages];
  std::uint64_t q_empty[C::kQStages];
  std::uint64_t k_full[C::kKvStages];
  std::uint64_t k_empty[C::kKvStages];
  std::uint64_t v_full[C::kKvStages];
  std::uint64_t v_empty[C::kKvStages];
};

// Keys that a tile or task sees together.
template <typename C, typename Seen>
__device__ inline int keys_of(const Seen& seen) {
  return C::kBounded ? seen.keys : seen.position + seen.rows;
}

struct Blocks {  // of kKeys keys that a tile sees: [first, last]
  int first;
  int last;
};
template <typename C>
__device__ inline Blocks key_blocks(int position, int keys, int window) {
  return {max(0, position - window + 1) / C::kKeys, (keys - 1) / C::kKeys};
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
// Keeps the compiler from moving uses of `x` above what stands before.
template <int kCount>
__device__ inline void pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
// The largest of a row's values over the four lanes that hold it, and their sum.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFF, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFF, x, 2);
}

// S[64, kKeys] = Q K^T, issued and committed.
template <typename C>
__device__ void issue_qk(float (&s)[C::kKeys / 2], const bf16* q, const bf16* k) {
  const std::uint64_t q_base = sm90::descriptor_128(q);
  const std::uint64_t k_base = sm90::descriptor_128(k);
#pragma unroll
  for (int step = 0; step < C::kQkDim / 16; ++step) {
    const int panel = step / 4;
    const int within = step % 4 * 32;
    sm90::Wgmma<C::kKeys>::bf16_ss(s, q_base + ((panel * 64 * 128 + within) >> 4),
                                   k_base + ((panel * C::kKeys * 128 + within) >> 4), step > 0);
  }
  sm90::wgmma_commit();
}

// O[64, kVDim] (+)= P V, issued and committed. V is MN-major: its rows are keys.
template <typename C>
__device__ void issue_pv(float (&o)[C::kVDim / 2], const std::uint32_t (&p)[C::kKeys / 16][4],
                         const bf16* v, bool accumulate) {
  constexpr std::uint32_t kBetweenPanels = C::kKeys * 128;
  const std::uint64_t base = sm90::descriptor_128(v, 1024, kBetweenPanels);
#pragma unroll
  for (int step = 0; step < C::kKeys / 16; ++step) {
    sm90::Wgmma<C::kVDim>::template bf16_rs<1>(o, p[step], base + (step * 2048 >> 4),
                                               step > 0 || accumulate);
  }
  sm90::wgmma_commit();
}

// Two rows of a thread: index 0 is row lane / 4 of its warp's 16, index 1 the one 8 below.
struct Rows {
  float base[2] = {-INFINITY, -INFINITY};  // log2 of what exponentials are relative to
  float sum[2] = {0, 0};                   // of this thread's columns
};

// Base-2 logarithm of how far a score may exceed what the exponentials of its row are relative to:
// values up to 256 lose nothing in bf16 or in fp32 sums, and the sums need no rescaling.
inline constexpr float kSlack = 8;

// S, of rows from `position` on (kBounded: of which none sees a key behind `last`), becomes
// 2^(scale_log2 S - base). The base is raised to the row's largest score, and only when
// that has grown past 2^kSlack: then true is returned in all lanes and `shrink` is what earlier
// sums must be multiplied by.
template <bool kMask, typename C>
__device__ bool softmax(float (&s)[C::kKeys / 2], Rows& rows, float (&shrink)[2],
                        const Arguments& a, int position, int last, int first_key) {
  if constexpr (kMask) {
    const int column = first_key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; ++i) {
      const int key = column + i / 4 * 8 + i % 2;
      int row = position + i / 2 % 2 * 8;  // the last key that it sees
      if constexpr (C::kBounded) row = min(row, last);
      if (key > row || key <= row - a.window) s[i] = -INFINITY;
    }
  }
  float largest[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x[2] = {s[2 * half], s[2 * half + 1]};
#pragma unroll
    for (int i = 4; i < C::kKeys / 2; i += 4) {
      x[0] = fmaxf(x[0], s[i + 2 * half]);
      x[1] = fmaxf(x[1], s[i + 2 * half + 1]);
    }
    largest[half] = row_max(fmaxf(x[0], x[1])) * a.scale_log2;
  }
  const bool grows = __any_sync(
      0xFFFFFFFF, largest[0] > rows.base[0] + kSlack || largest[1] > rows.base[1] + kSlack);
  if (grows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float old = rows.base[half];
      rows.base[half] = fmaxf(old, largest[half]);
      // A row may see none of its first blocks' keys: its sum stays 0.
      shrink[half] = old == -INFINITY ? 0.0f : exp2_approx(old - rows.base[half]);
      rows.sum[half] *= shrink[half];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float base = kMask && rows.base[half] == -INFINITY ? 0.0f : rows.base[half];
    float sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[i + 2 * half + e];
        x = exp2_approx(x * a.scale_log2 - base);
        sum[e] += x;
      }
    }
    rows.sum[half] += sum[0] + sum[1];
  }
  return grows;
}

template <typename C>
__device__ void to_bf16(std::uint32_t (&p)[C::kKeys / 16][4], const float (&s)[C::kKeys / 2]) {
#pragma unroll
  for (int i = 0; i < C::kKeys / 4; ++i) p[i / 4][i % 4] = pack(s[2 * i], s[2 * i + 1]);
}

template <int kCount>
__device__ void shrink_rows(float (&o)[kCount], const float (&shrink)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= shrink[i / 2 % 2];
}

// Zeroes the values of keys from `valid` on: they lie past the end of the sequence, where memory
// may hold NaN, which a probability of 0 would not remove.
template <typename C>
__device__ void clear_values(bf16* v, int valid) {
  constexpr int kVectors = C::kVDim / kPanel * C::kKeys * 8;  // of 16 bytes; 8 in a row of a panel
  for (int i = threadIdx.x % 128; i < kVectors; i += 128) {
    if (i / 8 % C::kKeys >= valid) reinterpret_cast<uint4*>(v)[i] = make_uint4(0, 0, 0, 0);
  }
  sm90::fence_async_shared();
  sm90::named_barrier_sync(8 + threadIdx.x / 128, 128);
}

// Four lanes hold columns {2 t, 2 t + 1} of four groups of 8; afterwards lane t holds group t
// whole.
__device__ inline uint4 transpose_quad(std::uint32_t (&x)[4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {  // lanes t and t ^ 1 swap their off-diagonal words
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFF, t & 1 ? x[i] : x[i + 1], 1);
    (t & 1 ? x[i] : x[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFF, t & 2 ? x[i] : x[i + 2], 2);
    (t & 2 ? x[i] : x[i + 2]) = other;
  }
  return make_uint4(x[0], x[1], x[2], x[3]);
}

template <typename C>
__device__ void write_rows(const float (&o)[C::kVDim / 2], const Rows& rows, const Arguments& a,
                           const Task& task, int first_row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half;
    const float sum = row_sum(rows.sum[half]);
    const float inverse = 1.0f / sum;
    const std::int64_t token = task.query_row + row;
    bf16* const out = a.out + (token * a.heads + task.head) * C::kVDim + threadIdx.x % 4 * 8;
#pragma unroll
    for (int group = 0; group < C::kVDim / 32; ++group) {
      std::uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (4 * group + i) + 2 * half;
        x[i] = pack(o[at] * inverse, o[at + 1] * inverse);
      }
      const uint4 vector = transpose_quad(x);
      if (row < task.rows) *reinterpret_cast<uint4*>(out + 32 * group) = vector;
    }
    if (a.lse != nullptr && threadIdx.x % 4 == 0 && row < task.rows) {
      constexpr float kLn2 = 0.693147180559945f;
      a.lse[token * a.heads + task.head] = (rows.base[half] + log2f(sum)) * kLn2;
    }
  }
}

}  // namespace orrery::prefill

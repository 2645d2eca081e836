#pragma once

// Causal attention of new tokens for sm_90a, shared by attention_prefill and mla_prefill.

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/attention_prefill/schedule.h"
#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace orrery::prefill {

// What one instance of the kernel is compiled for.
template <int kQkDim_, int kVDim_, int kConsumers_, int kQStages_, bool kPaged_>
struct Config {
  static constexpr int kQkDim = kQkDim_;          // elements of a query and a key
  static constexpr int kVDim = kVDim_;            // elements of a value
  static constexpr int kConsumers = kConsumers_;  // warpgroups that compute, 64 rows each
  static constexpr int kQStages = kQStages_;      // query tiles in shared memory
  static constexpr bool kPaged = kPaged_;
  static constexpr int kRows = 64 * kConsumers;  // of a query tile
  static constexpr int kKeys = 128;              // of a key or value tile
  static constexpr int kKvStages = 2;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;
};

inline constexpr int kPanel = 64;  // bf16 in one 128-byte row of a swizzled tile

// Copies' maps: queries in boxes of 64 rows, keys and values in boxes of kKeys rows or one page.
struct Maps {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
};

struct Arguments {
  const PrefillTile* tiles = nullptr;
  int num_tiles = 0;        // of one head
  int* counters = nullptr;  // tiles taken, blocks done; both 0 before and after a launch
  bf16* out = nullptr;      // [tokens, heads, kVDim]
  float* lse = nullptr;     // [heads, tokens] or null
  int tokens = 0;           // new ones of all sequences
  int heads = 0;
  int heads_per_kv = 1;
  float scale_log2 = 0;  // softmax scale times log2(e)
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

// Position in a ring of kStages buffers. A reader waits for `phase`, a writer for `phase ^ 1`.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Blocks {  // of kKeys keys that a tile sees: [first, last]
  int first;
  int last;
};
template <typename C>
__device__ inline Blocks key_blocks(int position, int rows, int window) {
  return {max(0, position - window + 1) / C::kKeys, (position + rows - 1) / C::kKeys};
}

// --- producer: one warp ------------------------------------------------------------------------

// One tile of keys or values: kDim / kPanel panels of kKeys rows, one after the other.
template <typename C, int kDim>
__device__ void load_tile(bf16* shared, std::uint64_t* full, const CUtensorMap* map,
                          const Arguments& a, const PrefillTile& tile, int kv_head, int block) {
  constexpr int kPanels = kDim / kPanel;
  const int lane = threadIdx.x % 32;
  if constexpr (C::kPaged) {
    // Pages that hold visible keys; a lane copies one panel of one page.
    const int keys = min(C::kKeys, tile.position + tile.rows - block * C::kKeys);
    const int pages = (keys + a.block_size - 1) / a.block_size;
    if (lane == 0) sm90::barrier_arrive_expect(full, pages * a.block_size * kDim * sizeof(bf16));
    const int page = lane / kPanels;
    const int panel = lane % kPanels;
    if (page < pages) {
      const int index = block * (C::kKeys / a.block_size) + page;
      sm90::load_4d(shared + (panel * C::kKeys + page * a.block_size) * kPanel, map, panel * kPanel,
                    kv_head, 0, a.block_table[tile.sequence * a.blocks_per_sequence + index], full);
    }
  } else if (lane == 0) {
    sm90::barrier_arrive_expect(full, C::kKeys * kDim * sizeof(bf16));
    sm90::load_4d(shared, map, 0, tile.key_row + block * C::kKeys, 0, kv_head, full);
  }
}

template <typename C>
__device__ void produce(Shared<C>& shared, const Maps& maps, const Arguments& a) {
  const int lane = threadIdx.x % 32;
  const int total = a.num_tiles * a.heads;
  Ring<C::kQStages> q;
  Ring<C::kKvStages> k;
  Ring<C::kKvStages> v;
  int index = blockIdx.x;
  while (true) {
    sm90::barrier_wait(&shared.q_empty[q.stage], q.phase ^ 1);
    if (index >= total) break;
    const PrefillTile tile = a.tiles[index / a.heads];
    const int head = index % a.heads;
    const int kv_head = head / a.heads_per_kv;
    if (lane == 0) {
      shared.task[q.stage] = {tile.query_row, tile.rows, tile.position, head};
      sm90::barrier_arrive_expect(&shared.q_full[q.stage], C::kRows * C::kQkDim * sizeof(bf16));
#pragma unroll
      for (int i = 0; i < C::kConsumers; ++i) {
        sm90::load_4d(shared.q[q.stage][i], &maps.q, 0, tile.query_row + 64 * i, 0, head,
                      &shared.q_full[q.stage]);
      }
      index = gridDim.x + atomicAdd(a.counters, 1);
    }
    q.advance();
    // From the diagonal down; the consumers take keys one block ahead of values.
    const Blocks blocks = key_blocks<C>(tile.position, tile.rows, a.window);
    for (int block = blocks.last; block >= blocks.first - 1; --block) {
      if (block >= blocks.first) {
        sm90::barrier_wait(&shared.k_empty[k.stage], k.phase ^ 1);
        load_tile<C, C::kQkDim>(shared.k[k.stage], &shared.k_full[k.stage], &maps.k, a, tile,
                                kv_head, block);
        k.advance();
      }
      if (block < blocks.last) {
        sm90::barrier_wait(&shared.v_empty[v.stage], v.phase ^ 1);
        load_tile<C, C::kVDim>(shared.v[v.stage], &shared.v_full[v.stage], &maps.v, a, tile,
                               kv_head, block + 1);
        v.advance();
      }
    }
    index = __shfl_sync(0xFFFFFFFF, index, 0);
  }
  if (lane == 0) {
    shared.task[q.stage].rows = 0;
    sm90::barrier_arrive(&shared.q_full[q.stage]);
    // The last block to run out of tiles leaves the counters as they were.
    if (atomicAdd(a.counters + 1, 1) == static_cast<int>(gridDim.x) - 1) {
      a.counters[0] = 0;
      a.counters[1] = 0;
    }
  }
}

// --- consumers -----------------------------------------------------------------------------------

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
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this thread's columns
};

// S becomes exp(scale (S - max)); `shrink` is what earlier sums must be multiplied by. kMask drops
// keys outside of (position - window, position] of each row, `first_key` being the column 0.
template <bool kMask, typename C>
__device__ void softmax(float (&s)[C::kKeys / 2], Rows& rows, float (&shrink)[2],
                        const Arguments& a, int position, int first_key) {
  if constexpr (kMask) {
    const int column = first_key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; ++i) {
      const int key = column + i / 4 * 8 + i % 2;
      const int row = position + i / 2 % 2 * 8;
      if (key > row || key <= row - a.window) s[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest[2] = {s[2 * half], s[2 * half + 1]};
#pragma unroll
    for (int i = 4; i < C::kKeys / 2; i += 4) {
      largest[0] = fmaxf(largest[0], s[i + 2 * half]);
      largest[1] = fmaxf(largest[1], s[i + 2 * half + 1]);
    }
    const float old = rows.max[half];
    rows.max[half] = fmaxf(old, row_max(fmaxf(largest[0], largest[1])));
    // A row may see none of its first blocks' keys: exp(-inf - 0) is 0 then.
    const bool none = kMask && rows.max[half] == -INFINITY;
    const float base = none ? 0.0f : rows.max[half] * a.scale_log2;
    shrink[half] = exp2_approx(old * a.scale_log2 - base);
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
    rows.sum[half] = rows.sum[half] * shrink[half] + sum[0] + sum[1];
  }
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
      a.lse[static_cast<std::int64_t>(task.head) * a.tokens + token] =
          (rows.max[half] * a.scale_log2 + log2f(sum)) * kLn2;
    }
  }
}

template <typename C>
__device__ void consume(Shared<C>& shared, const Arguments& a, int group) {
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  const int first_row = 64 * group + 16 * warp + lane / 4;
  const int turn = 1 + group;
  const int next_turn = 1 + (group + 1) % C::kConsumers;
  const auto release = [lane](std::uint64_t* barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  Ring<C::kQStages> q;
  Ring<C::kKvStages> k;
  Ring<C::kKvStages> v;
  float s[C::kKeys / 2];
  float o[C::kVDim / 2];
  std::uint32_t p[C::kKeys / 16][4];
  if (group == C::kConsumers - 1) sm90::named_barrier_arrive(next_turn, 256);
  while (true) {
    sm90::barrier_wait(&shared.q_full[q.stage], q.phase);
    const Task task = shared.task[q.stage];
    if (task.rows == 0) break;
    const Blocks blocks = key_blocks<C>(task.position, task.rows, a.window);
    const int position = task.position + first_row;
    // Whether a block has keys that some row of this warpgroup does not see.
    const int lowest = task.position + 64 * group;
    const auto is_cut = [&](int block) {
      return (block + 1) * C::kKeys - 1 > lowest || block * C::kKeys <= lowest + 63 - a.window;
    };
    const bf16* const queries = shared.q[q.stage][group];
    Rows rows;
    float shrink[2];

    sm90::barrier_wait(&shared.k_full[k.stage], k.phase);
    sm90::wgmma_fence();
    issue_qk<C>(s, queries, shared.k[k.stage]);
    sm90::wgmma_wait<0>();
    pin(s);
    release(&shared.k_empty[k.stage]);
    k.advance();
    softmax<true, C>(s, rows, shrink, a, position, blocks.last * C::kKeys);
    to_bf16<C>(p, s);
    const int valid = task.position + task.rows - blocks.last * C::kKeys;
    if (valid < C::kKeys) {
      sm90::barrier_wait(&shared.v_full[v.stage], v.phase);
      clear_values<C>(shared.v[v.stage], valid);
    }

    for (int block = blocks.last - 1; block >= blocks.first; --block) {
      sm90::barrier_wait(&shared.k_full[k.stage], k.phase);
      sm90::named_barrier_sync(turn, 256);
      sm90::wgmma_fence();
      issue_qk<C>(s, queries, shared.k[k.stage]);
      sm90::barrier_wait(&shared.v_full[v.stage], v.phase);
      issue_pv<C>(o, p, shared.v[v.stage], block < blocks.last - 1);
      sm90::named_barrier_arrive(next_turn, 256);
      sm90::wgmma_wait<1>();
      pin(s);
      release(&shared.k_empty[k.stage]);
      k.advance();
      if (is_cut(block)) {
        softmax<true, C>(s, rows, shrink, a, position, block * C::kKeys);
      } else {
        softmax<false, C>(s, rows, shrink, a, position, block * C::kKeys);
      }
      sm90::wgmma_wait<0>();
      pin(o);
      pin(s);
      release(&shared.v_empty[v.stage]);
      v.advance();
      shrink_rows(o, shrink);
      to_bf16<C>(p, s);
    }

    release(&shared.q_empty[q.stage]);
    q.advance();
    sm90::barrier_wait(&shared.v_full[v.stage], v.phase);
    sm90::wgmma_fence();
    issue_pv<C>(o, p, shared.v[v.stage], blocks.last > blocks.first);
    sm90::wgmma_wait<0>();
    pin(o);
    release(&shared.v_empty[v.stage]);
    v.advance();
    write_rows<C>(o, rows, a, task, first_row);
  }
  if (group == 0) sm90::named_barrier_sync(turn, 256);
}

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1)
    prefill_kernel(const __grid_constant__ Maps maps, const Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared<C>& shared = *reinterpret_cast<Shared<C>*>(memory);
  if (threadIdx.x == 0) {
    constexpr int kReleases = 4 * C::kConsumers;  // one per warp
    for (int i = 0; i < C::kQStages; ++i) {
      sm90::barrier_init(&shared.q_full[i], 1);
      sm90::barrier_init(&shared.q_empty[i], kReleases);
    }
    for (int i = 0; i < C::kKvStages; ++i) {
      sm90::barrier_init(&shared.k_full[i], 1);
      sm90::barrier_init(&shared.k_empty[i], kReleases);
      sm90::barrier_init(&shared.v_full[i], 1);
      sm90::barrier_init(&shared.v_empty[i], kReleases);
    }
    sm90::fence_barrier_init();
    sm90::prefetch_tensor_map(&maps.q);
    sm90::prefetch_tensor_map(&maps.k);
    sm90::prefetch_tensor_map(&maps.v);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    sm90::registers_decrease<C::kProducerRegisters>();
    if (threadIdx.x < 32) produce<C>(shared, maps, a);
  } else {
    sm90::registers_increase<C::kConsumerRegisters>();
    consume<C>(shared, a, static_cast<int>(threadIdx.x) / 128 - 1);
  }
}

}  // namespace orrery::prefill

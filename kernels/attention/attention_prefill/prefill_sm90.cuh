#pragma once

// Causal attention of new tokens for sm_90a, shared by attention_prefill and mla_prefill.
//
// One block per SM takes one (tile of queries, head) after the other from a counter, those that see
// most keys first. One warp copies; each of two or three warpgroups holds 64 query rows, their
// scores S and outputs O in registers, and goes through the keys, 128 at a time, from the diagonal
// back. Two tiles each of keys and values are in shared memory:
//
//   copies        Q K3   K2 V3      K1 V2      K0 V1      V0          Q' K3' ...
//   tensor cores  S3     S2 O+=P3V3 S1 O+=P2V2 S0 O+=P1V1 O+=P0V0
//   other units      P3=softmax(S3) P2         P1         P0          O / sum, LSE
//
// The next scores are issued ahead of the MMA with V, so that softmax waits for them alone and runs
// beside it; the other warpgroups' MMAs fill the rest. P stays in registers as the left operand.
// The structure is FlashAttention-3's (arXiv 2407.08608), less what did not pay here:
//   * no barrier makes the warpgroups take turns (with it: 6 % slower at 8K tokens);
//   * what the exponentials are relative to follows the largest score only past a factor of 2^8,
//     so that O is rarely rescaled (without: 3 % slower; seen in FlashAttention-4).
// Slower too: the next tile's first scores issued beside this one's last MMA (10 %: registers
// move more), keys shared by the two blocks of a cluster (a third: they wait for each other), a
// third tile of keys and values instead of the second of queries (2 %), tiles copied in pieces of
// 64 rows by several lanes (4 %).
//
// Per 128 x 128 scores with head size d: 65536 d flops, 512 d bytes from L2. On an H200, head size
// 128, 8K tokens, the tensor cores work in 76 % of all cycles; long prompts run at the board's
// power limit, 1.5 GHz at 600 W. With 32 heads 765 us; queries in rows of a fused
// projection 766 us.

#include "kernels/attention/attention_prefill/prefill_tile_sm90.cuh"

namespace orrery::prefill {

// --- producer: one warp ------------------------------------------------------------------------

// One tile of keys or values: kDim / kPanel panels of kKeys rows, one after the other; the last
// kRotated / kPanel of them by `rotated`.
template <typename C, int kDim, int kRotated = 0>
__device__ void load_tile(bf16* shared, std::uint64_t* full, const CUtensorMap* map,
                          const CUtensorMap* rotated, const Arguments& a, const PrefillTile& tile,
                          int kv_head, int block) {
  constexpr int kPanels = kDim / kPanel;
  const int lane = threadIdx.x % 32;
  if constexpr (C::kPaged) {
    // Pages that hold visible keys; a lane copies one panel of one page.
    const int keys = min(C::kKeys, keys_of<C>(tile) - block * C::kKeys);
    const int pages = (keys + a.block_size - 1) / a.block_size;
    if (lane == 0) sm90::barrier_arrive_expect(full, pages * a.block_size * kDim * sizeof(bf16));
    const int page = lane / kPanels;
    const int panel = lane % kPanels;
    if (page < pages) {
      const std::int64_t entry =
          tile.sequence * a.blocks_per_sequence + block * (C::kKeys / a.block_size) + page;
      sm90::load_4d(shared + (panel * C::kKeys + page * a.block_size) * kPanel, map, panel * kPanel,
                    kv_head, 0, a.block_table[entry], full);
    }
  } else if (lane == 0) {
    sm90::barrier_arrive_expect(full, C::kKeys * kDim * sizeof(bf16));
    sm90::load_4d(shared, map, 0, tile.key_row + block * C::kKeys, 0, kv_head, full);
    if constexpr (kRotated > 0) {
      sm90::load_4d(shared + C::kKeys * (kDim - kRotated), rotated, 0,
                    tile.key_row + block * C::kKeys, 0, kv_head / a.heads_per_rotated, full);
    }
  }
}

template <typename C>
__device__ void produce(Shared<C>& shared, const Maps& maps, const Arguments& a) {
  const int lane = threadIdx.x % 32;
  Ring<C::kQStages> q;
  Ring<C::kKvStages> k;
  Ring<C::kKvStages> v;
  int index = blockIdx.x;
  while (true) {
    sm90::barrier_wait(&shared.q_empty[q.stage], q.phase ^ 1);
    if (index >= a.num_tiles * a.heads) break;
    const PrefillTile tile = a.tiles[index / a.heads];
    const int head = index % a.heads;
    const int kv_head = head / a.heads_per_kv;
    if (lane == 0) {
      shared.task[q.stage] = {tile.query_row, tile.rows, tile.position, tile.keys, head};
      sm90::barrier_arrive_expect(&shared.q_full[q.stage], C::kRows * C::kQkDim * sizeof(bf16));
#pragma unroll
      for (int i = 0; i < C::kConsumers; ++i) {
        sm90::load_4d(shared.q[q.stage][i], &maps.q, 0, tile.query_row + 64 * i, 0, head,
                      &shared.q_full[q.stage]);
      }
      index = static_cast<int>(gridDim.x) + atomicAdd(a.counters, 1);
    }
    q.advance();
    // From the diagonal down; the consumers take keys one block ahead of values.
    const Blocks blocks = key_blocks<C>(tile.position, keys_of<C>(tile), a.window);
    for (int block = blocks.last; block >= blocks.first - 1; --block) {
      if (block >= blocks.first) {
        sm90::barrier_wait(&shared.k_empty[k.stage], k.phase ^ 1);
        load_tile<C, C::kQkDim, C::kRotated>(shared.k[k.stage], &shared.k_full[k.stage], &maps.k,
                                             &maps.rotated, a, tile, kv_head, block);
        k.advance();
      }
      if (block < blocks.last) {
        sm90::barrier_wait(&shared.v_empty[v.stage], v.phase ^ 1);
        load_tile<C, C::kVDim>(shared.v[v.stage], &shared.v_full[v.stage], &maps.v, nullptr, a,
                               tile, kv_head, block + 1);
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

template <typename C>
__device__ void consume(Shared<C>& shared, const Arguments& a, int group) {
  const int first_row = 64 * group + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
  const auto release = [](std::uint64_t* barrier) {
    if (threadIdx.x % 32 == 0) sm90::barrier_arrive(barrier);
  };
  Ring<C::kQStages> q;
  Ring<C::kKvStages> k;
  Ring<C::kKvStages> v;
  float s[C::kKeys / 2];
  float o[C::kVDim / 2];
  std::uint32_t p[C::kKeys / 16][4];
  while (true) {
    sm90::barrier_wait(&shared.q_full[q.stage], q.phase);
    const Task task = shared.task[q.stage];
    if (task.rows == 0) break;
    const int keys = keys_of<C>(task);
    const Blocks blocks = key_blocks<C>(task.position, keys, a.window);
    const int position = task.position + first_row;
    // Whether a block has keys that some row of this warpgroup does not see.
    int lowest = task.position + 64 * group;
    if constexpr (C::kBounded) lowest = min(lowest, keys - 1);
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
    softmax<true, C>(s, rows, shrink, a, position, keys - 1, blocks.last * C::kKeys);
    to_bf16<C>(p, s);
    const int valid = keys - blocks.last * C::kKeys;
    if (valid < C::kKeys) {
      sm90::barrier_wait(&shared.v_full[v.stage], v.phase);
      clear_values<C>(shared.v[v.stage], valid);
    }

    for (int block = blocks.last - 1; block >= blocks.first; --block) {
      sm90::barrier_wait(&shared.k_full[k.stage], k.phase);
      sm90::wgmma_fence();
      issue_qk<C>(s, queries, shared.k[k.stage]);
      sm90::barrier_wait(&shared.v_full[v.stage], v.phase);
      issue_pv<C>(o, p, shared.v[v.stage], block < blocks.last - 1);
      sm90::wgmma_wait<1>();
      pin(s);
      release(&shared.k_empty[k.stage]);
      k.advance();
      bool grows;
      if (is_cut(block)) {
        grows = softmax<true, C>(s, rows, shrink, a, position, keys - 1, block * C::kKeys);
      } else {
        grows = softmax<false, C>(s, rows, shrink, a, position, 0, block * C::kKeys);
      }
      sm90::wgmma_wait<0>();
      pin(o);
      pin(s);
      release(&shared.v_empty[v.stage]);
      v.advance();
      if (grows) shrink_rows(o, shrink);
      to_bf16<C>(p, s);
    }

    __syncwarp();  // all lanes have read the task
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
    if constexpr (C::kRotated > 0) sm90::prefetch_tensor_map(&maps.rotated);
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

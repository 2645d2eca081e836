#pragma once

// What a block does once it knows where rows lie: tiles of both layers, and tokens' sums.
//
// Tasks are handed out in one order, by tickets, to the block that is free first: expert by expert
// the tiles of the first layer, and some experts behind them those of the second, so that what the
// first makes is still in the L2 cache and nobody waits for it. In an expert it goes by columns of
// w and in those by rows, which share w. A task needs only tasks before it, which blocks have begun
// already, so waiting ends.
//
//   copies       takes a ticket, waits for what the tile needs, copies w and rows
//   warpgroups   multiply, write, and count what is written a little later, when it has arrived
//   other warps  take some rows at a time in their order, wait for their tiles, and add up the
//   tokens
//                whose last row is among them; in the end all warps do

#include <cmath>
#include <cstdint>

#include "kernels/cuda/vector.cuh"
#include "kernels/experts/fused_moe/parts_sm90.cuh"

namespace orrery::fused_moe {

// --- the order of tasks --------------------------------------------------------------------------

class Order {
 public:
  __device__ Order(const Arguments& a, const Tables& tables) : a_(a), tables_(tables) {
    // One and a half rounds of the blocks.
    const int tiles = max(tables.tile_start[a.experts] * a.columns[0], 1);
    lag_ = min(1 + 3 * static_cast<int>(gridDim.x) * a.experts / (2 * tiles), a.experts);
    count_ = tables.tile_start[a.experts] * (a.columns[0] + a.columns[1]);
  }
  // False past the last one.
  __device__ bool find(int index, Task& task) const {
    if (index >= count_) return false;
    int turn = 0;  // the last that begins at or before `index`
    for (int count = a_.experts + lag_; count > 1;) {
      const int half = count / 2;
      if (begin_of(turn + half) <= index) turn += half;
      count -= half;
    }
    int rest = index - begin_of(turn);
    int expert = turn;
    int tiles = tiles_of(turn);
    task.step = Step::kFirst;
    if (rest >= tiles * a_.columns[0]) {
      rest -= tiles * a_.columns[0];
      expert = turn - lag_;
      tiles = tiles_of(expert);
      task.step = Step::kSecond;
    }
    const int first = tables_.row_start[expert];
    const int rows = tables_.row_start[expert + 1] - first;
    const int tile_rows = Config::tile_rows(rows);
    const int row = rest % tiles * tile_rows;
    const bool is_narrow = task.step == Step::kFirst && a_.is_gated;
    task.row = first + row;
    task.rows = min(rows - row, tile_rows);
    task.width = tile_rows;
    task.column = rest / tiles * (is_narrow ? Config::kColumns / 2 : Config::kColumns);
    task.group = expert;
    task.tile = tables_.tile_start[expert] + rest % tiles;
    return true;
  }

 private:
  __device__ int tiles_before(int expert) const {
    return tables_.tile_start[min(max(expert, 0), a_.experts)];
  }
  __device__ int tiles_of(int expert) const {
    return tiles_before(expert + 1) - tiles_before(expert);
  }
  // The first task of a turn: tiles of the first layer of an expert, then of the second of the one
  // `lag` before.
  __device__ int begin_of(int turn) const {
    return tiles_before(turn) * a_.columns[0] + tiles_before(turn - lag_) * a_.columns[1];
  }

  const Arguments& a_;
  const Tables& tables_;
  int lag_;
  int count_;
};

// The next ticket of this launch.
__device__ inline unsigned take_ticket(unsigned long long* ticket, unsigned count) {
  return static_cast<unsigned>(atomicAdd(ticket, static_cast<unsigned long long>(count)));
}

// --- copies: one thread --------------------------------------------------------------------------

__device__ inline void load_stage(Shared& shared, const Maps& maps, const Arguments& a, int stage,
                                  const Task& task, int k) {
  constexpr int kHalf = 64 * 128;  // bytes of 64 rows of w
  std::uint64_t* const full = &shared.gemm.stages.full[stage];
  unsigned char* const w = shared.gemm.w[stage];
  sm90::barrier_arrive_expect(full, Config::kWBytes + task.width * 128);
  if (task.step == Step::kSecond) {
    sm90::load_2d(w, &maps.layers[1].w, k, task.group * a.layers[1].n + task.column, full);
  } else if (a.is_gated) {  // of each warpgroup 64 rows of the gate and the same of the other
    const int n = a.layers[0].n;
    const int gate = task.group * 2 * n + task.column;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sm90::load_2d(w + i * kHalf, &maps.w1, k, gate + i % 2 * n + i / 2 * 64, full);
    }
  } else {
    sm90::load_2d(w, &maps.w1, k, task.group * a.layers[0].n + task.column, full);
  }
  int row = 0;
#pragma unroll
  for (int i = 3; i >= 0; --i) {
    const int box = 16 << i;
    if (task.width - row < box) continue;
    const CUtensorMap* const x = task.step == Step::kFirst ? &maps.rows[i] : &maps.layers[1].x[i];
    sm90::load_2d(shared.gemm.x[stage] + row * 128, x, k, task.row + row, full);
    row += box;
  }
}

__device__ inline void produce(Shared& shared, const Tables& tables, const Maps& maps,
                               const Arguments& a, Ring<Config::kStages>& ring,
                               std::uint32_t launch) {
  const Order order(a, tables);
  unsigned next = take_ticket(&a.control->gemm_ticket, 1);
  Task task;
  while (order.find(static_cast<int>(next), task)) {
    next = take_ticket(&a.control->gemm_ticket, 1);  // on its way while this one is copied
    const bool is_first = task.step == Step::kFirst;
    if (is_first) {
      await(a.control, &a.arrived[task.tile], launch * kArrivals, Wait::kRows, task.tile);
    } else {
      await(a.control, &a.first_done[task.tile], launch * 2 * a.columns[0], Wait::kFirst,
            task.tile);
    }
    sm90::fence_async();
    const int steps = a.layers[is_first ? 0 : 1].k_steps;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      sm90::barrier_wait(&shared.gemm.stages.empty[ring.stage], ring.phase ^ 1);
      if (step == 0) shared.gemm.stages.task[ring.stage] = task;
      load_stage(shared, maps, a, ring.stage, task, step * Config::kK);
      ring.advance();
    }
  }
  sm90::barrier_wait(&shared.gemm.stages.empty[ring.stage], ring.phase ^ 1);
  shared.gemm.stages.task[ring.stage].group = -1;
  sm90::barrier_arrive(&shared.gemm.stages.full[ring.stage]);
}

// --- warpgroups ----------------------------------------------------------------------------------

// A tile whose copies to global memory may be under way: counted when they have ended, by the
// thread that has issued them.
struct Written {
  std::uint32_t* counter = nullptr;

  __device__ void count() {
    if (counter == nullptr) return;
    sm90::store_wait<0>();
    sm90::fence_async();
    sm90::add_release(counter, 1);
    counter = nullptr;
  }
};

__device__ inline float gated(float gate, float other) {
  return gate / (1 + __expf(-gate)) * other;
}
__device__ inline float activated(float value, bool is_relu) {
  constexpr float kHalfRoot = 0.70710678f;
  return is_relu ? fmaxf(value, 0.0f) : 0.5f * value * (1 + erff(value * kHalfRoot));
}

template <int kWidth>
__device__ __forceinline__ void consume_tile(Shared& shared, Ring<Config::kStages>& ring,
                                             const Maps& maps, const Arguments& a, const Task& task,
                                             int group, int& buffer_index, Written& written) {
  constexpr int kCountStep = 3;  // when the copies of the tile before have ended by far
  const int layer = task.step == Step::kFirst ? 0 : 1;
  const tiles::Arguments& of = a.layers[layer];
  const bool is_issuer = threadIdx.x % 128 == 0;
  swap_ab::Sums<Config, kWidth> d;
  swap_ab::multiply<Config, kWidth>(d, shared.gemm, ring, of.k_steps, group, [&](int step) {
    if (step == kCountStep && is_issuer) written.count();
  });
  if (is_issuer) written.count();
  swap_ab::Task own = task;
  const swap_ab::Scales none{};
  if (layer == 0 && a.is_gated) {
    own.column += group * 64;
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) d[0][i] = gated(d[0][i], d[1][i]);
    swap_ab::write_tile<Config, kWidth, 1>(d, shared.gemm, maps.layers[layer], of, own, none, group,
                                           buffer_index);
  } else {
    own.column += group * 128;
    if (layer == 0) {
#pragma unroll
      for (int block = 0; block < Config::kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < kWidth / 2; ++i) d[block][i] = activated(d[block][i], a.is_relu);
      }
    }
    swap_ab::write_tile<Config, kWidth>(d, shared.gemm, maps.layers[layer], of, own, none, group,
                                        buffer_index);
  }
  sm90::fence_async();  // what went by ordinary stores
  sm90::named_barrier_sync(1 + group, 128);
  written.counter = (layer == 0 ? a.first_done : a.second_done) + task.tile;
}

__device__ __forceinline__ void consume(Shared& shared, const Maps& maps, const Arguments& a,
                                        Ring<Config::kStages>& ring, int group) {
  const bool is_issuer = threadIdx.x % 128 == 0;
  int buffer_index = 0;
  Written written;
  while (true) {
    std::uint64_t* const full = &shared.gemm.stages.full[ring.stage];
    // Who waits for a copy may wait for a tile that waits for this one.
    if (is_issuer && !sm90::barrier_test(full, ring.phase)) written.count();
    __syncwarp();
    sm90::barrier_wait(full, ring.phase);
    const Task task = shared.gemm.stages.task[ring.stage];
    if (task.group < 0) break;
    const auto in_width = [&]<int kWidth>() {
      consume_tile<kWidth>(shared, ring, maps, a, task, group, buffer_index, written);
    };
    switch (task.width) {
      case 16:
        in_width.template operator()<16>();
        break;
      case 32:
        in_width.template operator()<32>();
        break;
      case 64:
        in_width.template operator()<64>();
        break;
      case 96:
        in_width.template operator()<96>();
        break;
      case 128:
        in_width.template operator()<128>();
        break;
      case 144:
        in_width.template operator()<144>();
        break;
      default:
        in_width.template operator()<160>();
    }
  }
  if (is_issuer) written.count();
  __syncwarp();
}

// --- sums of tokens ------------------------------------------------------------------------------

// One token by a warp: its rows are there.
__device__ inline void add_up(const Arguments& a, int token) {
  constexpr int kAhead = 2;  // vectors of a lane, of as many rows
  constexpr int kRows = 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = a.hidden / kVectorSize;
  const std::int32_t* const rows = a.token_rows + static_cast<std::int64_t>(token) * a.topk;
  const float* const weights = a.token_weights + static_cast<std::int64_t>(token) * a.topk;
  for (int first = lane; first < vectors; first += 32 * kAhead) {
    float sums[kAhead][kVectorSize] = {};
    for (int k = 0; k < a.topk; k += kRows) {
      uint4 held[kRows][kAhead] = {};
      float weight[kRows] = {};
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (k + j >= a.topk) continue;
        weight[j] = __ldcg(weights + k + j);
        const bf16* const row = a.rows + static_cast<std::int64_t>(__ldcg(rows + k + j)) * a.hidden;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int vector = first + 32 * i;
          if (vector < vectors) held[j][i] = __ldcg(reinterpret_cast<const uint4*>(row) + vector);
        }
      }
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        if (k + j >= a.topk) continue;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          float values[kVectorSize];
          unpack(held[j][i], values);
#pragma unroll
          for (int at = 0; at < kVectorSize; ++at) {
            sums[i][at] = fmaf(weight[j], values[at], sums[i][at]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int vector = first + 32 * i;
      if (vector < vectors) {
        store(a.y + static_cast<std::int64_t>(token) * a.hidden + vector * kVectorSize,
              pack(sums[i]));
      }
    }
  }
}

// By a warp, until no rows are left: those of a ticket, a lane each. Few, since the rows of the
// last experts come last and all at once.
__device__ inline void combine(const Tables& tables, const Arguments& a, std::uint32_t launch) {
  constexpr int kTicket = 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = tables.row_start[a.experts];
  const std::uint32_t target = launch * 2 * a.columns[1];
  const auto await_row = [&](int row) {
    const int tile = tile_of(tables, a, row);
    await(a.control, &a.second_done[tile], target, Wait::kSecond, tile);
  };
  while (true) {
    unsigned first = 0;
    if (lane == 0) first = take_ticket(&a.control->combine_ticket, kTicket);
    first = __shfl_sync(0xFFFFFFFFU, first, 0);
    if (static_cast<int>(first) >= rows) return;
    const int row = static_cast<int>(first) + lane;
    int token = 0;
    bool is_last = lane < kTicket && row < rows;  // of its token's rows
    if (is_last) {
      await_row(row);
      token = __ldcg(a.row_token + row);
      for (int k = 0; k < a.topk; ++k) {
        is_last &= __ldcg(a.token_rows + static_cast<std::int64_t>(token) * a.topk + k) <= row;
      }
    }
    if (is_last) {
      for (int k = 0; k < a.topk; ++k) {
        await_row(__ldcg(a.token_rows + static_cast<std::int64_t>(token) * a.topk + k));
      }
    }
    __syncwarp();
    for (unsigned left = __ballot_sync(0xFFFFFFFFU, is_last); left != 0; left &= left - 1) {
      add_up(a, __shfl_sync(0xFFFFFFFFU, token, __ffs(static_cast<int>(left)) - 1));
    }
  }
}

}  // namespace orrery::fused_moe

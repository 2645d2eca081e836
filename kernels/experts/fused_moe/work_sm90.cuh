#pragma once

// What a block does once it knows where rows lie: tiles of both layers, and tokens' sums.
//
// Tasks are handed out in one order, by tickets, to the block that is free first: expert by expert
// the tiles of the first layer, and those of the second behind so many tiles of other experts that
// nobody waits for what the first makes, which is still in the L2 cache. In an expert it goes by
// columns of w and in those by rows, which share w. A task needs only tasks before it, which blocks
// have begun already, so waiting ends.
//
//   copies       takes a ticket, waits for what the tile needs, copies w and rows
//   warpgroups   multiply, write, and count what is written a little later, when it has arrived
//   other warps  take some rows at a time in their order, wait for their tiles, and add up the
//                tokens whose last row is among them; in the end all warps do
//
// Of fp8 the second layer takes rows whose scale is that of their largest value, which is known
// when all tiles of the first have written. So two of the other warps make fp8 rows of what lies
// between the layers first, in the order in which it is written.

#include <cmath>
#include <cstdint>

#include "kernels/cuda/vector.cuh"
#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/fused_moe/results_sm90.cuh"

namespace orrery::fused_moe {

// --- the order of tasks --------------------------------------------------------------------------

// Of this rank.
class Order {
 public:
  __device__ Order(const Arguments& a, const Tables& tables)
      : a_(a),
        tables_(tables),
        first_(a.rank * a.own_experts),
        order_(tables.tile_start + first_, tables.waiting, a.own_experts, a.columns[0],
               a.columns[1]) {}
  // False past the last one.
  __device__ bool find(int index, Task& task) const {
    TaskPlace place;
    if (!order_.find(index, place)) return false;
    const int of_all = first_ + place.expert;
    const int first = tables_.row_start[of_all] - tables_.row_start[first_];
    const int rows = tables_.row_start[of_all + 1] - tables_.row_start[of_all];
    const int tile_rows = Config::tile_rows(rows);
    const int row = place.tile * tile_rows;
    const bool is_narrow = !place.is_second && a_.is_gated;
    task.step = place.is_second ? Step::kSecond : Step::kFirst;
    task.row = first + row;
    task.rows = min(rows - row, tile_rows);
    task.width = tile_rows;
    task.column = place.column * (is_narrow ? Config::kColumns / 2 : Config::kColumns);
    task.group = place.expert;
    task.tile = tables_.tile_start[of_all] + place.tile;
    task.row_of_expert = row;
    return true;
  }

 private:
  const Arguments& a_;
  const Tables& tables_;
  int first_;
  TaskOrder order_;
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

template <typename T>
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
      await_ranks(a.control, &a.areas[a.rank].arrived[task.tile], launch * kArrivals, Wait::kRows,
                  task.tile);
    } else if (sizeof(T) == 1) {
      await(a.control, &a.quantized[task.tile], launch * kArrivals, Wait::kQuantized, task.tile);
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
      load_stage(shared, maps, a, ring.stage, task, step * ConfigOf<T>::kK);
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
  std::uint32_t* counter = nullptr;  // on this GPU
  unsigned owners = 0;               // ranks to whom parts of it went
  int tile = 0;

  __device__ void count(const Arguments& a) {
    if (counter == nullptr && owners == 0) return;
    sm90::store_wait<0>();
    sm90::fence_async();
    if (counter != nullptr) sm90::add_release(counter, 1);
    for (; owners != 0; owners &= owners - 1) {
      const int rank = __ffs(static_cast<int>(owners)) - 1;
      sm90::add_release_system(a.areas[rank].second_done + tile, 1);
    }
    counter = nullptr;
  }
};

template <typename T, int kWidth>
__device__ __forceinline__ void consume_tile(Shared& shared, Ring<Config::kStages>& ring,
                                             const Maps& maps, const Arguments& a, const Task& task,
                                             int group, int& buffer_index, Written& written,
                                             std::uint32_t launch) {
  constexpr int kCountStep = 3;  // when the copies of the tile before have ended by far
  const int layer = task.step == Step::kFirst ? 0 : 1;
  const bool is_issuer = threadIdx.x % 128 == 0;
  TileScales<kWidth> scales{};
  if constexpr (sizeof(T) == 1) scales = load_scales<kWidth>(a, task, group);
  swap_ab::Sums<Config, kWidth> d;
  swap_ab::multiply<ConfigOf<T>, kWidth>(d, stages_of<T>(shared), ring, a.layers[layer].k_steps,
                                         group, [&](int step) {
                                           if (step == kCountStep && is_issuer) written.count(a);
                                         });
  if (is_issuer) written.count(a);
  if constexpr (sizeof(T) == 1) scale<kWidth>(d, scales);
  const Destination to(maps, a, task, launch);
  write_tile<T, kWidth>(d, shared, a, task, to, group, buffer_index);
  sm90::fence_async();  // what went by ordinary stores
  sm90::named_barrier_sync(1 + group, 128);
  written.tile = task.tile;
  written.owners = to.owners();
  if (layer == 0) {
    written.counter = a.first_done + task.tile;
  } else if (a.ranks == 1) {
    written.counter = a.areas[0].second_done + task.tile;
  }
}

template <typename T>
__device__ __forceinline__ void consume(Shared& shared, const Maps& maps, const Arguments& a,
                                        Ring<Config::kStages>& ring, int group,
                                        std::uint32_t launch) {
  const bool is_issuer = threadIdx.x % 128 == 0;
  int buffer_index = 0;
  Written written;
  while (true) {
    std::uint64_t* const full = &shared.gemm.stages.full[ring.stage];
    // Who waits for a copy may wait for a tile that waits for this one.
    if (is_issuer && !sm90::barrier_test(full, ring.phase)) written.count(a);
    __syncwarp();
    sm90::barrier_wait(full, ring.phase);
    const Task task = shared.gemm.stages.task[ring.stage];
    if (task.group < 0) break;
    const auto in_width = [&]<int kWidth>() {
      consume_tile<T, kWidth>(shared, ring, maps, a, task, group, buffer_index, written, launch);
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
  if (is_issuer) written.count(a);
  __syncwarp();
}

// --- between the layers of fp8 -------------------------------------------------------------------

// Rows of own experts, a few of them by a warp. Lane i knows row i of these, from `first` on.
constexpr int kQuantized = 4;

struct QuantizedRows {
  int count;
  int tile;    // of the lane's row
  float peak;  // likewise
};

// When all tiles of the first layer have written them.
__device__ inline QuantizedRows await_rows(const Arguments& a, const Tables& tables, int first,
                                           int rows, std::uint32_t launch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t* const starts = tables.row_start + a.rank * a.own_experts;
  QuantizedRows of{.count = min(rows - first, kQuantized), .tile = 0, .peak = 0};
  if (lane < of.count) {
    const int row = starts[0] + first + lane;
    const int expert = last_at_most(starts, a.own_experts, row);
    of.tile = tile_of(tables, a.rank * a.own_experts + expert, row - starts[expert]);
    await(a.control, &a.first_done[of.tile], launch * 2 * a.columns[0], Wait::kFirst, of.tile);
    of.peak = __uint_as_float(__ldcg(a.h_peaks + first + lane));
  }
  __syncwarp();
  return of;
}

// The rows follow each other, so their vectors do.
__device__ inline void quantize_rows(const Arguments& a, int ffn, int first,
                                     const QuantizedRows& of) {
  constexpr int kAhead = 6;  // vectors of a lane
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = ffn / kVectorSize;
  const int end = of.count * vectors;
  const float multiplier = fp8_multiplier(of.peak);
  const std::int64_t first_column = static_cast<std::int64_t>(first) * ffn;
  for (int at = lane; at - lane < end; at += 32 * kAhead) {
    uint4 held[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int vector = at + 32 * i;
      if (vector < end) {
        held[i] = __ldcg(reinterpret_cast<const uint4*>(a.h + first_column) + vector);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int vector = at + 32 * i;
      int row = 0;
#pragma unroll
      for (int begin = 1; begin < kQuantized; ++begin) row += vector >= begin * vectors ? 1 : 0;
      const float of_row = __shfl_sync(0xFFFFFFFFU, multiplier, row);
      if (vector < end) {
        *(reinterpret_cast<uint2*>(a.h_fp8 + first_column) + vector) = to_fp8(held[i], of_row);
      }
    }
  }
}

// By a warp, until no rows are left: those of a ticket, of which the next is on its way meanwhile.
__device__ inline void quantize(const Arguments& a, const Tables& tables, std::uint32_t launch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t* const starts = tables.row_start + a.rank * a.own_experts;
  const int rows = starts[a.own_experts] - starts[0];
  unsigned next = 0;
  if (lane == 0) next = take_ticket(&a.control->quantize_ticket, kQuantized);
  while (true) {
    const int first = static_cast<int>(__shfl_sync(0xFFFFFFFFU, next, 0));
    if (first >= rows) return;
    if (lane == 0) next = take_ticket(&a.control->quantize_ticket, kQuantized);
    const QuantizedRows of = await_rows(a, tables, first, rows, launch);
    quantize_rows(a, a.layers[0].n, first, of);
    if (lane < of.count) {
      a.h_scales[first + lane] = of.peak / kFp8Max;
      a.h_peaks[first + lane] = 0;
    }
    sm90::fence_async();
    __threadfence();
    __syncwarp();
    if (lane < of.count) sm90::add_release(&a.quantized[of.tile], 1);
  }
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
        const bf16* const row =
            a.areas[a.rank].results + static_cast<std::int64_t>(__ldcg(rows + k + j)) * a.hidden;
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

// By each block that has ended, where a wait was in vain: all of y is no numbers, also what blocks
// that have ended before have left there.
__device__ inline void spoil(const Arguments& a) {
  const std::int64_t vectors = static_cast<std::int64_t>(a.tokens) * a.hidden / kVectorSize;
  constexpr std::uint32_t kNoNumbers = 0xFFFFFFFF;
  for (std::int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    store(a.y + i * kVectorSize, {kNoNumbers, kNoNumbers, kNoNumbers, kNoNumbers});
  }
}

// By a warp, until no rows of own results are left: those of a ticket, a lane each. Few, since the
// rows of the last experts come last and all at once.
__device__ inline void combine(const Arguments& a, std::uint32_t launch) {
  constexpr int kTicket = 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rows = a.tokens * a.topk;
  const std::uint32_t target = launch * 2 * a.columns[1];
  const auto await_row = [&](int row) {
    unsigned long long word = load_word(a.row_tile + row);
    for (const std::uint64_t begin = now(); word >> 32 != launch;) {
      if (gives_up(a.control, begin, Wait::kRows, row)) return;
      word = load_word(a.row_tile + row);
    }
    const int tile = static_cast<int>(static_cast<std::uint32_t>(word));
    await_ranks(a.control, &a.areas[a.rank].second_done[tile], target, Wait::kSecond, tile);
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

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
#include "kernels/experts/fused_moe/trace_sm90.cuh"

namespace orrery::fused_moe {

// --- the order of tasks --------------------------------------------------------------------------

// Of this rank.
class Order {
 public:
  __device__ Order(const Arguments& a, const Tables& tables)
      : a_(a),
        tables_(tables),
        first_(a.rank * a.own),
        order_(tables.tile_start + first_, tables.waiting, a.own, a.columns[0], a.columns[1]) {}
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

// What all steps of a task copy, in boxes: of w 64 rows of the gate and the same of the other half
// for each warpgroup, or all 256 rows; of x all rows in one box, or in two.
class Copies {
 public:
  __device__ Copies(const Maps& maps, const Arguments& a, const Task& task)
      : is_gated_(task.step == Step::kFirst && a.is_gated),
        bytes_(Config::kWBytes + task.width * 128),
        x_row_(task.row) {
    const bool is_first = task.step == Step::kFirst;
    const Weights from(a, task, is_gated_ ? 2 : 1);
    w_ = task.group < a.shared ? (is_first ? &maps.shared_w1 : &maps.shared_w2)
                               : (is_first ? &maps.w1 : &maps.layers[1].w);
    w_row_ = from.row + task.column;
    w_other_ = from.other;
    w_column_ = from.column;
    const CUtensorMap* const x = is_first ? maps.rows : maps.layers[1].x;
    const int size = 31 - __clz(task.width);
    const int rest = task.width - (1 << size);
    constexpr int kLeast = 4;  // of boxes, as a power of two
    x_ = x + (size - kLeast);
    x_rows_ = 1 << size;
    x_more_ = rest == 0 ? nullptr : x + (31 - __clz(rest) - kLeast);
  }

  __device__ void load(Shared& shared, int stage, int k) const {
    constexpr int kBytes = 64 * 128;  // of 64 rows of w
    std::uint64_t* const full = &shared.gemm.stages.full[stage];
    unsigned char* const w = shared.gemm.w[stage];
    unsigned char* const x = shared.gemm.x[stage];
    sm90::barrier_arrive_expect(full, bytes_);
    if (is_gated_) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sm90::load_2d(w + i * kBytes, w_, k, w_row_ + i / 2 * 64 + (i % 2 == 0 ? 0 : w_other_),
                      full);
      }
    } else {
      sm90::load_2d(w, w_, k + w_column_, w_row_, full);
    }
    sm90::load_2d(x, x_, k, x_row_, full);
    if (x_more_ != nullptr) sm90::load_2d(x + x_rows_ * 128, x_more_, k, x_row_ + x_rows_, full);
  }

 private:
  bool is_gated_;
  std::uint32_t bytes_;
  const CUtensorMap* w_;
  int w_row_;
  int w_other_;
  int w_column_;
  const CUtensorMap* x_;
  const CUtensorMap* x_more_;
  int x_row_;
  int x_rows_;
};

template <typename T, typename Trace>
__device__ inline void produce(Shared& shared, const Tables& tables, const Maps& maps,
                               const Arguments& a, Ring<Config::kStages>& ring,
                               std::uint32_t launch, Trace& trace) {
  const Order order(a, tables);
  trace.asks();
  unsigned next = take_ticket(&a.control->gemm_ticket, 1);
  Task task;
  while (order.find(static_cast<int>(next), task)) {
    trace.takes(next, task);
    trace.asks();
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
    trace.is_ready();
    sm90::fence_async();
    const int steps = a.layers[is_first ? 0 : 1].k_steps;
    const Copies copies(maps, a, task);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      sm90::barrier_wait(&shared.gemm.stages.empty[ring.stage], ring.phase ^ 1);
      if (step == 0) shared.gemm.stages.task[ring.stage] = task;
      copies.load(shared, ring.stage, step * ConfigOf<T>::kK);
      ring.advance();
    }
  }
  trace.finds_none();
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

  template <typename Trace>
  __device__ void count(const Arguments& a, Trace& trace) {
    if (counter == nullptr && owners == 0) return;
    sm90::store_wait<0>();
    sm90::fence_async();
    if (counter != nullptr) sm90::add_release(counter, 1);
    for (; owners != 0; owners &= owners - 1) {
      const int rank = __ffs(static_cast<int>(owners)) - 1;
      sm90::add_release_system(a.areas[rank].second_done + tile, 1);
    }
    trace.has_counted();
    counter = nullptr;
  }
};

template <typename T, int kWidth, typename Trace>
__device__ __forceinline__ void consume_tile(Shared& shared, Ring<Config::kStages>& ring,
                                             const Maps& maps, const Arguments& a, const Task& task,
                                             int group, int& buffer_index, Written& written,
                                             std::uint32_t launch, Trace& trace) {
  constexpr int kCountStep = 3;  // when the copies of the tile before have ended by far
  const int layer = task.step == Step::kFirst ? 0 : 1;
  const bool is_issuer = threadIdx.x % 128 == 0;
  trace.multiplies();
  TileScales<kWidth> scales{};
  if constexpr (sizeof(T) == 1) scales = load_scales<kWidth>(a, task, group);
  swap_ab::Sums<Config, kWidth> d;
  swap_ab::multiply<ConfigOf<T>, kWidth>(d, stages_of<T>(shared), ring, a.layers[layer].k_steps,
                                         group, [&](int step) {
                                           if (step == kCountStep && is_issuer)
                                             written.count(a, trace);
                                         });
  if (is_issuer) written.count(a, trace);
  if constexpr (sizeof(T) == 1) scale<kWidth>(d, scales);
  const Destination to(maps, a, task, launch);
  write_tile<T, kWidth>(d, shared, a, task, to, group, buffer_index);
  sm90::fence_async();  // what went by ordinary stores
  sm90::named_barrier_sync(1 + group, 128);
  trace.has_written();
  written.tile = task.tile;
  written.owners = to.owners();
  if (layer == 0) {
    written.counter = a.first_done + task.tile;
  } else if (a.ranks == 1) {
    written.counter = a.areas[0].second_done + task.tile;
  }
}

template <typename T, typename Trace>
__device__ __forceinline__ void consume(Shared& shared, const Maps& maps, const Arguments& a,
                                        Ring<Config::kStages>& ring, int group,
                                        std::uint32_t launch, Trace& trace) {
  const bool is_issuer = threadIdx.x % 128 == 0;
  int buffer_index = 0;
  Written written;
  while (true) {
    std::uint64_t* const full = &shared.gemm.stages.full[ring.stage];
    // Who waits for a copy may wait for a tile that waits for this one.
    if (is_issuer && !sm90::barrier_test(full, ring.phase)) written.count(a, trace);
    __syncwarp();
    sm90::barrier_wait(full, ring.phase);
    const Task task = shared.gemm.stages.task[ring.stage];
    __syncwarp();  // who lets the next one be written has read it, and so have all of its warp
    if (task.group < 0) break;
    const auto in_width = [&]<int kWidth>() {
      consume_tile<T, kWidth>(shared, ring, maps, a, task, group, buffer_index, written, launch,
                              trace);
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
  if (is_issuer) written.count(a, trace);
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
  const std::int32_t* const starts = tables.row_start + a.rank * a.own;
  QuantizedRows of{.count = min(rows - first, kQuantized), .tile = 0, .peak = 0};
  if (lane < of.count) {
    const int row = starts[0] + first + lane;
    const int slot = last_at_most(starts, a.own, row);
    of.tile = tile_of(tables, a.rank * a.own + slot, row - starts[slot]);
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
template <typename Trace>
__device__ inline void quantize(const Arguments& a, const Tables& tables, std::uint32_t launch,
                                Trace& trace) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t* const starts = tables.row_start + a.rank * a.own;
  const int rows = starts[a.own] - starts[0];
  unsigned next = 0;
  if (lane == 0) next = take_ticket(&a.control->quantize_ticket, kQuantized);
  while (true) {
    const int first = static_cast<int>(__shfl_sync(0xFFFFFFFFU, next, 0));
    if (first >= rows) return;
    if (lane == 0) next = take_ticket(&a.control->quantize_ticket, kQuantized);
    trace.takes_rows();
    const QuantizedRows of = await_rows(a, tables, first, rows, launch);
    trace.has_rows();
    quantize_rows(a, a.layers[0].n, first, of);
    if (lane < of.count) {
      a.h_scales[first + lane] = of.peak / kFp8Max;
      a.h_peaks[first + lane] = 0;
    }
    sm90::fence_async();
    __threadfence();
    __syncwarp();
    if (lane < of.count) sm90::add_release(&a.quantized[of.tile], 1);
    trace.leaves_rows(lane < of.count, RowsOf::kQuantized, of.tile);
  }
}

// --- sums of tokens ------------------------------------------------------------------------------

// Columns [begin, end) of one token by a warp, in vectors: lane k < topk has the row of its k-th
// expert (none where it is dropped) and its weight; all rows are there.
__device__ inline void add_up(const Arguments& a, int token, int row, float weight, int begin,
                              int end) {
  constexpr int kAhead = 2;  // vectors of a lane, of as many rows
  constexpr int kRows = 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = begin + lane; first - lane < end; first += 32 * kAhead) {
    float sums[kAhead][kVectorSize] = {};
    for (int k = 0; k < a.topk; k += kRows) {
      uint4 held[kRows][kAhead] = {};
      float weights[kRows];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int of = __shfl_sync(0xFFFFFFFFU, row, min(k + j, a.topk - 1));
        weights[j] = __shfl_sync(0xFFFFFFFFU, weight, min(k + j, a.topk - 1));
        if (k + j >= a.topk || of == kDropped) {
          weights[j] = 0;
          continue;
        }
        const bf16* const from = a.areas[a.rank].results + static_cast<std::int64_t>(of) * a.hidden;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int vector = first + 32 * i;
          if (vector < end) held[j][i] = __ldcg(reinterpret_cast<const uint4*>(from) + vector);
        }
      }
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          float values[kVectorSize];
          unpack(held[j][i], values);
#pragma unroll
          for (int at = 0; at < kVectorSize; ++at) {
            sums[i][at] = fmaf(weights[j], values[at], sums[i][at]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int vector = first + 32 * i;
      if (vector < end) {
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

__device__ inline void await_result(const Arguments& a, int row, std::uint32_t launch) {
  unsigned long long word = load_word(a.row_tile + row);
  for (const std::uint64_t begin = now(); word >> 32 != launch;) {
    if (gives_up(a.control, begin, Wait::kRows, row)) return;
    word = load_word(a.row_tile + row);
  }
  const int tile = static_cast<int>(static_cast<std::uint32_t>(word));
  constexpr unsigned kPause = 800;  // many look while others need the memory
  await_ranks(a.control, &a.areas[a.rank].second_done[tile], launch * 2 * a.columns[1],
              Wait::kSecond, tile, kPause);
}

// By a warp, until none of `rows` own results are left: those of a ticket. Few, since the rows of
// the last experts come last and all at once; where all rows are few, a part of their columns each.
template <typename Trace>
__device__ inline void combine(const Arguments& a, int rows, std::uint32_t launch, Trace& trace) {
  constexpr int kTicket = 2;
  constexpr int kFewRows = 4096;
  constexpr int kParts = 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int parts = rows <= kFewRows ? kParts : 1;
  const int vectors = a.hidden / kVectorSize;
  const int of_part = (vectors + parts - 1) / parts;
  while (true) {
    unsigned ticket = 0;
    if (lane == 0) ticket = take_ticket(&a.control->combine_ticket, 1);
    ticket = __shfl_sync(0xFFFFFFFFU, ticket, 0);
    const int first = static_cast<int>(ticket) / parts * kTicket;
    const int begin = static_cast<int>(ticket) % parts * of_part;
    if (first >= rows) return;
    const int count = min(rows - first, kTicket);
    trace.takes_rows();
    if (lane < count) await_result(a, first + lane, launch);
    __syncwarp();
    trace.has_rows();
    int token[kTicket];
    int row[kTicket];  // of the lane's expert
    float weight[kTicket];
#pragma unroll
    for (int i = 0; i < kTicket; ++i) {
      token[i] = i < count ? __ldcg(a.row_token + first + i) : 0;
      const std::int64_t at = static_cast<std::int64_t>(token[i]) * a.topk + lane;
      row[i] = lane < a.topk ? __ldcg(a.token_rows + at) : kDropped;
      weight[i] = lane < a.topk ? __ldcg(a.token_weights + at) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kTicket; ++i) {
      const bool is_last = __all_sync(0xFFFFFFFFU, row[i] <= first + i);  // of its token's rows
      if (i >= count || !is_last) continue;
      if (row[i] != kDropped && row[i] != first + i) await_result(a, row[i], launch);
      __syncwarp();
      add_up(a, token[i], row[i], weight[i], begin, min(begin + of_part, vectors));
    }
    trace.leaves_rows(lane == 0, RowsOf::kSums, first);
  }
}

}  // namespace orrery::fused_moe

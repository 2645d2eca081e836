#pragma once

// Which experts a block's tokens go to, where their rows lie, and x in these rows, as bf16 or, with
// a scale for each row, as fp8.

#include <cmath>
#include <cstdint>

#include "kernels/cuda/prefix.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/experts/fused_moe/logits_sm90.cuh"
#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/fused_moe/trace_sm90.cuh"
#include "kernels/experts/index_shuffling/choose.cuh"

namespace orrery::fused_moe {

constexpr std::uint16_t kNoSlot = 0xFFFF;
constexpr float kLeastSum = 1e-20f;

// --- the choice ----------------------------------------------------------------------------------

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) value += __shfl_xor_sync(0xFFFFFFFFU, value, lanes);
  return value;
}
__device__ inline float warp_most(float value) {
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, lanes));
  }
  return value;
}

// A warp for each token: scores in place of logits, experts and weights.
template <int kVectors>
__device__ void choose_experts(const Arguments& a, Scratch& scratch, const Stretch& tokens) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int local = warp; local < tokens.count; local += kWarps) {
    const int token = tokens.first + local;
    float* const row = a.scores + static_cast<std::int64_t>(token) * a.routed;
    float values[kVectors][kScores];
    load_logits<kVectors>(a, token, lane, values);
    if (a.logit_bias != nullptr) add_logit_bias<kVectors>(a, lane, values);
    float most = -INFINITY;
    bool is_bad = false;
#pragma unroll
    for (int i = 0; i < kVectors * kScores; ++i) {
      const float value = values[i / kScores][i % kScores];
      is_bad |= isnan(value);
      most = fmaxf(most, value);
    }
    most = warp_most(most);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors * kScores; ++i) {
      float& value = values[i / kScores][i % kScores];
      value = a.is_sigmoid ? 1 / (1 + expf(-value)) : expf(value - most);
      sum += value;
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kVectors * kScores; ++i) {
      const int expert = (i / kScores * 32 + lane) * kScores + i % kScores;
      float& value = values[i / kScores][i % kScores];
      if (!a.is_sigmoid) value /= sum;
      is_bad |= expert < a.routed && isnan(value);
      if (expert < a.routed) row[expert] = value;
    }
    __syncwarp();
    const Scores<float> scores{.data = a.scores,
                               .bias = a.correction_bias,
                               .experts = a.routed,
                               .groups = a.groups,
                               .topk_groups = a.topk_groups,
                               .best_two = a.correction_bias != nullptr,
                               .aligned = false};
    TokenChoice<32, kVectors> choice(scores, values, token, lane);
    for (int k = 0; k < a.chosen; ++k) choice.choose(k, lane, k + 1 < a.chosen);
    const bool is_choice = lane < a.chosen;
    float weight = is_choice ? row[choice.picked] : 0.0f;
    if (a.normalises) weight /= warp_sum(weight) + kLeastSum;
    is_bad = __any_sync(0xFFFFFFFFU, is_bad);
    if (lane < a.topk) {  // shared experts behind the chosen ones
      const int slot = is_choice ? slot_of(a, choice.picked) : a.rank * a.own + lane - a.chosen;
      scratch.chosen[local * a.topk + lane] = static_cast<std::uint16_t>(slot);
      a.token_weights[static_cast<std::int64_t>(token) * a.topk + lane] =
          is_choice ? weight * a.scale : 1.0f;
      atomicAdd(&scratch.own[slot], 1);
    }
    if (lane == 0 && is_bad) atomicAdd(&scratch.own[a.slots], 1);
  }
}

// --- counts of all blocks ------------------------------------------------------------------------

// Says what this block has, and finds what blocks before it and all have. A count travels with the
// number of the launch beside it, as in index_shuffling.
__device__ inline void exchange_counts(const Arguments& a, Scratch& scratch, std::uint32_t launch) {
  constexpr int kBatch = 12;  // loads in flight
  const int columns = a.slots + 1;
  const int thread = static_cast<int>(threadIdx.x);
  for (int column = thread; column < columns; column += kThreads) {
    const unsigned long long word = numbered(launch, scratch.own[column]);
    store_word(a.counts + static_cast<std::int64_t>(blockIdx.x) * columns + column, word);
  }
  const int parts = max(kThreads / columns, 1);
  const int blocks = static_cast<int>(gridDim.x);
  const int each = (blocks + parts - 1) / parts;
  for (int place = thread; place < parts * columns; place += kThreads) {
    const int column = place % columns;
    const int begin = place / columns * each;
    const int end = min(begin + each, blocks);
    std::int32_t total = 0;
    std::int32_t before = 0;
    for (int first = begin; first < end; first += kBatch) {
      unsigned long long found[kBatch];
      const std::uint64_t start = now();
      bool is_complete = false;
      while (!is_complete) {
        is_complete = true;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          found[i] = load_word(
              a.counts + static_cast<std::int64_t>(min(first + i, end - 1)) * columns + column);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) is_complete &= found[i] >> 32 == launch;
        if (!is_complete && gives_up(a.control, start, Wait::kCounts, first)) return;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i >= end) break;
        const auto count = static_cast<std::int32_t>(found[i] & 0xFFFFFFFFU);
        total += count;
        if (first + i < static_cast<int>(blockIdx.x)) before += count;
      }
    }
    atomicAdd(&scratch.totals[column], total);
    atomicAdd(&scratch.before[column], before);
  }
}

// --- counts of all ranks -------------------------------------------------------------------------

__device__ inline bool is_shared(const Arguments& a, int slot) {
  return is_shared_slot(slot, a.own, a.shared);
}

// By all threads: rows that are taken of each slot, in the order in which their results lie.
__device__ inline void take_rows(const Arguments& a, Scratch& scratch) {
  for (int slot = static_cast<int>(threadIdx.x); slot < a.slots; slot += kThreads) {
    int rows = scratch.totals[slot];
    if (!is_shared(a, slot)) rows = min(rows, a.capacity);
    scratch.totals[slot] = scratch.starts[turn_of(a, slot)] = rows;
    if (a.ranks == 1) scratch.rows[slot] = rows;
  }
}

// By one block: its rank's starts to all ranks.
__device__ inline void say_starts(const Arguments& a, const Scratch& scratch,
                                  std::uint32_t launch) {
  const int columns = a.slots + 1;
  for (int i = static_cast<int>(threadIdx.x); i < a.ranks * columns; i += kThreads) {
    const int turn = i % columns;
    store_word_of_ranks(starts_of(a, a.areas[i / columns], a.rank, launch) + turn,
                        numbered(launch, scratch.starts[turn]));
  }
}

// By a thread: rows of a slot from all ranks, and from those before this one. Who has the starts of
// a rank knows that it has begun this launch, and so ended the one before.
__device__ inline void hear_starts(const Arguments& a, Scratch& scratch, int slot,
                                   std::uint32_t launch) {
  const int turn = turn_of(a, slot);
  unsigned long long begins[kMostRanks];
  unsigned long long ends[kMostRanks];
  const std::uint64_t start = now();
  for (int missing = 0; missing >= 0;) {
    missing = -1;
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= a.ranks) break;
      const unsigned long long* const words = starts_of(a, a.areas[a.rank], rank, launch) + turn;
      begins[rank] = load_word_of_ranks(words);
      ends[rank] = load_word_of_ranks(words + 1);
    }
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= a.ranks) break;
      if (begins[rank] >> 32 != launch || ends[rank] >> 32 != launch) missing = rank;
    }
    if (missing >= 0 && gives_up(a.control, start, Wait::kStarts, missing)) return;
  }
  std::int32_t rows = 0;
#pragma unroll
  for (int rank = 0; rank < kMostRanks; ++rank) {
    if (rank >= a.ranks) break;
    if (rank == a.rank) scratch.first[slot] = rows;
    rows += static_cast<std::int32_t>(static_cast<std::uint32_t>(ends[rank]) -
                                      static_cast<std::uint32_t>(begins[rank]));
  }
  scratch.rows[slot] = rows;
}

// All of it, by all threads of several ranks.
__device__ inline void exchange_starts(const Arguments& a, Scratch& scratch, std::uint32_t launch) {
  if (threadIdx.x < 32) warp_prefix(scratch.starts, a.slots);
  __syncthreads();
  if (blockIdx.x == 0) say_starts(a, scratch, launch);
  for (int slot = static_cast<int>(threadIdx.x); slot < a.slots; slot += kThreads) {
    hear_starts(a, scratch, slot, launch);
  }
}

// By all threads: where rows and tiles begin.
__device__ inline void make_tables(const Arguments& a, Scratch& scratch, const Tables& tables,
                                   std::int32_t& results) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int slot = thread; slot < a.slots; slot += kThreads) {
    const int rows = scratch.rows[slot];
    const int tile_rows = Config::tile_rows(rows);
    scratch.tiles[slot] = (rows + tile_rows - 1) / tile_rows;
    tables.row_start[slot] = rows;
  }
  __syncthreads();
  if (thread / 32 == 0) warp_prefix(tables.row_start, a.slots);
  if (thread / 32 == 1) warp_prefix(scratch.tiles, a.slots);
  if (thread / 32 == 2 && a.ranks == 1) warp_prefix(scratch.starts, a.slots);
  __syncthreads();
  if (thread == 0) results = scratch.starts[a.slots];
  for (int slot = thread; slot <= a.slots; slot += kThreads) {
    tables.tile_start[slot] = static_cast<std::uint16_t>(scratch.tiles[slot]);
  }
  // One and a half rounds of the blocks, four where rows are quantised in between.
  const int least =
      least_tiles_between(a.h_fp8 == nullptr ? 3 : 8, static_cast<int>(gridDim.x), a.columns[0]);
  const std::int32_t* const starts = scratch.tiles + a.rank * a.own;
  for (int slot = thread; slot < a.own; slot += kThreads) {
    tables.waiting[slot] = static_cast<std::uint8_t>(experts_waiting(starts, slot, least));
  }
}

// --- rows ----------------------------------------------------------------------------------------

// A warp's part of the block's choices, [begin, end), and how many warps have some: as few as take
// 32 at a time.
struct Choices {
  int begin;
  int end;
  int warps;
};
__device__ inline Choices choices_of_warp(int choices) {
  const int each = (choices + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int begin = static_cast<int>(threadIdx.x) / 32 * each;
  return {.begin = begin,
          .end = min(begin + each, choices),
          .warps = choices == 0 ? 0 : (choices + each - 1) / each};
}

// Rows of the block's choices, in the order of tokens: each warp counts its choices of each expert,
// begins behind those of the warps before it, and goes through them once more.
__device__ inline void place_rows(const Arguments& a, Scratch& scratch, const Tables& tables,
                                  const Stretch& tokens, std::uint32_t launch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Choices choices = choices_of_warp(tokens.count * a.topk);
  std::int32_t* const placed = scratch.placed[threadIdx.x / 32];
  // Of each choice how many before it in its warp are the same, and what all of them together add.
  const auto for_each = [&](const auto& place) {
    for (int first = choices.begin; first < choices.end; first += 32) {
      const int at = first + lane;
      const int slot = at < choices.end ? scratch.chosen[at] : kNoSlot;
      const unsigned same = __match_any_sync(0xFFFFFFFFU, slot);
      const int before = __popc(same & ((1U << lane) - 1));
      if (slot != kNoSlot) place(at, slot, before);
      __syncwarp();
      if (slot != kNoSlot && before == 0) placed[slot] += __popc(same);
      __syncwarp();
    }
  };
  for (int slot = lane; slot < a.slots; slot += 32) placed[slot] = 0;
  __syncwarp();
  for_each([](int /*at*/, int /*slot*/, int /*before*/) {});
  __syncthreads();
  for (int slot = static_cast<int>(threadIdx.x); slot < a.slots; slot += kThreads) {
    int next = scratch.before[slot];
    for (int warp = 0; warp < choices.warps; ++warp) {
      const int count = scratch.placed[warp][slot];
      scratch.placed[warp][slot] = next;
      next += count;
    }
  }
  __syncthreads();
  for_each([&](int at, int slot, int before) {
    std::int32_t& token_row = a.token_rows[static_cast<std::int64_t>(tokens.first) * a.topk + at];
    const int of_rank = placed[slot] + before;
    if (of_rank >= scratch.totals[slot]) {
      scratch.place[at] = token_row = kDropped;
      return;
    }
    const int row = scratch.first[slot] + of_rank;  // of the slot
    const int result = scratch.starts[turn_of(a, slot)] + of_rank;
    scratch.place[at] = first_row_of(tables, a, slot) + row;
    token_row = result;
    a.row_token[result] = tokens.first + at / a.topk;
    store_word(a.row_tile + result, numbered(launch, tile_of(tables, slot, row)));
  });
}

// What rows and tiles that are not there, or not this rank's, would have added to the counters of
// tiles; each block has some tiles.
__device__ inline void fill_counters(const Arguments& a, const Scratch& scratch,
                                     const Tables& tables) {
  const int blocks = static_cast<int>(gridDim.x);
  const int tiles = tables.tile_start[a.slots];
  const Area& area = a.areas[a.rank];
  for (int tile = static_cast<int>(blockIdx.x + threadIdx.x * gridDim.x); tile < a.most_tiles;
       tile += kThreads * blocks) {
    int rows = 0;              // that come to an own slot
    bool has_results = false;  // of own tokens
    if (tile < tiles) {
      const int slot = last_at_most(tables.tile_start, a.slots, tile);
      const int tile_rows = tile_rows_of(tables, slot);
      const int begin = (tile - tables.tile_start[slot]) * tile_rows;
      const int end = min(scratch.rows[slot], begin + tile_rows);
      if (rank_of(a, slot) == a.rank) rows = end - begin;
      const int own = scratch.first[slot];
      has_results = own < end && own + scratch.totals[slot] > begin && scratch.totals[slot] > 0;
    }
    if (rows == 0) atomicAdd(&a.first_done[tile], 2 * a.columns[0]);
    if (a.h_fp8 != nullptr)
      atomicAdd(&a.quantized[tile], kArrivals - static_cast<std::uint32_t>(rows));
    if (!has_results) atomicAdd(&area.second_done[tile], 2 * a.columns[1]);
    atomicAdd(&area.arrived[tile], kArrivals - static_cast<std::uint32_t>(rows));
  }
}

constexpr int kSentAhead = 8;  // vectors of a lane

__device__ inline void load_vectors(uint4 (&held)[kSentAhead], const bf16* x, int first,
                                    int vectors) {
#pragma unroll
  for (int i = 0; i < kSentAhead; ++i) {
    const int vector = first + 32 * i;
    held[i] = vector < vectors ? load_once(x + vector * kVectorSize) : uint4{};
  }
}

template <typename T>
__device__ inline T* row_of_choice(const Arguments& a, const Scratch& scratch, int choice) {
  return static_cast<T*>(a.areas[rank_of(a, scratch.chosen[choice])].rows) +
         static_cast<std::int64_t>(scratch.place[choice]) * a.hidden;
}

// x of one token, the block's number `local`, as fp8 by a warp. A row of one load is read once.
__device__ inline void send_token_as_fp8(const Arguments& a, const Scratch& scratch, const bf16* x,
                                         int local) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = a.hidden / kVectorSize;
  uint4 held[kSentAhead];
  float peak = 0;
  for (int first = lane; first < vectors; first += 32 * kSentAhead) {
    load_vectors(held, x, first, vectors);
#pragma unroll
    for (const uint4& vector : held) {
      float values[kVectorSize];
      unpack(vector, values);
#pragma unroll
      for (const float value : values) peak = fmaxf(peak, fabsf(value));
    }
  }
  peak = warp_most(peak);
  const float multiplier = fp8_multiplier(peak);
  for (int first = lane; first < vectors; first += 32 * kSentAhead) {
    if (vectors > 32 * kSentAhead) load_vectors(held, x, first, vectors);
    uint2 packed[kSentAhead];
#pragma unroll
    for (int i = 0; i < kSentAhead; ++i) packed[i] = to_fp8(held[i], multiplier);
    for (int k = 0; k < a.topk; ++k) {
      if (scratch.place[local * a.topk + k] == kDropped) continue;
      fp8* const row = row_of_choice<fp8>(a, scratch, local * a.topk + k);
#pragma unroll
      for (int i = 0; i < kSentAhead; ++i) {
        const int vector = first + 32 * i;
        if (vector < vectors) *reinterpret_cast<uint2*>(row + vector * kVectorSize) = packed[i];
      }
    }
  }
  if (lane < a.topk && scratch.place[local * a.topk + lane] != kDropped) {
    const int choice = local * a.topk + lane;
    const Area& area = a.areas[rank_of(a, scratch.chosen[choice])];
    area.row_scales[scratch.place[choice]] = peak / kFp8Max;
  }
}

// y of a token that no expert takes, by a warp.
__device__ inline void leave_out(const Arguments& a, int token) {
  bf16* const y = a.y + static_cast<std::int64_t>(token) * a.hidden;
  const int vectors = a.hidden / kVectorSize;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < vectors; i += 32) {
    store(y + i * kVectorSize, uint4{});
  }
}

// A warp for each token: its x into the rows of its experts, on whichever GPU they are. Nothing but
// these rows goes there.
template <typename T>
__device__ inline void send_rows(const Arguments& a, const Scratch& scratch, const Tables& tables,
                                 const Stretch& tokens) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int vectors = a.hidden / kVectorSize;
  for (int local = warp; local < tokens.count; local += kWarps) {
    const bf16* const x = a.x + static_cast<std::int64_t>(tokens.first + local) * a.hidden;
    const bool is_taken = lane < a.topk && scratch.place[local * a.topk + lane] != kDropped;
    if (!__any_sync(0xFFFFFFFFU, is_taken)) {
      leave_out(a, tokens.first + local);
      continue;
    }
    if constexpr (sizeof(T) == 1) {
      send_token_as_fp8(a, scratch, x, local);
    } else {
      for (int first = lane; first < vectors; first += 32 * kSentAhead) {
        uint4 held[kSentAhead];
        load_vectors(held, x, first, vectors);
        for (int k = 0; k < a.topk; ++k) {
          if (scratch.place[local * a.topk + k] == kDropped) continue;
          bf16* const row = row_of_choice<bf16>(a, scratch, local * a.topk + k);
#pragma unroll
          for (int i = 0; i < kSentAhead; ++i) {
            const int vector = first + 32 * i;
            if (vector < vectors) store(row + vector * kVectorSize, held[i]);
          }
        }
      }
    }
  }
  sm90::fence_async();
  if (a.ranks == 1) {
    __threadfence();
  } else {
    __threadfence_system();
  }
  __syncwarp();
  // All lanes' rows are there: each says so for some of them.
  for (int local = warp; local < tokens.count; local += kWarps) {
    const int at = local * a.topk + lane;
    if (lane >= a.topk || scratch.place[at] == kDropped) continue;
    const int slot = scratch.chosen[at];
    const int tile = tile_of(tables, slot, scratch.place[at] - first_row_of(tables, a, slot));
    std::uint32_t* const counter = &a.areas[rank_of(a, slot)].arrived[tile];
    if (a.ranks == 1) {
      sm90::add_release(counter, 1);
    } else {
      sm90::add_release_system(counter, 1);
    }
  }
}

// All of it, by all threads of the block; the tables are there when it ends, rows of other blocks
// may not be. The ring stands where it is left. False where a wait has ended in vain: there are no
// tables.
template <typename T, typename Trace>
__device__ inline bool route(Shared& shared, const Tables& tables, const Maps& maps,
                             const Arguments& a, Ring<Config::kStages>& ring, std::uint32_t launch,
                             Trace& trace) {
  const Stretch tokens = stretch_of(a);
  const LogitWork work = logit_work(a, tokens);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 128) {
    if (thread == 0) copy_for_logits(shared, maps, a, work, ring);
  } else {
    make_logits(shared, a, work, ring, thread / 128 - 1);
  }
  __syncthreads();
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared.gemm.w);
  for (int i = thread; i <= a.slots; i += kThreads) {
    scratch.totals[i] = scratch.before[i] = scratch.own[i] = scratch.first[i] = 0;
  }
  exchange_logits(a, tokens, work, launch);
  __syncthreads();
  trace.mark(Mark::kLogits);
  if (a.routed <= 128) {
    choose_experts<1>(a, scratch, tokens);
  } else if (a.routed <= 256) {
    choose_experts<2>(a, scratch, tokens);
  } else {
    choose_experts<4>(a, scratch, tokens);
  }
  __syncthreads();
  trace.mark(Mark::kChoice);
  exchange_counts(a, scratch, launch);
  __syncthreads();
  take_rows(a, scratch);
  __syncthreads();
  if (a.ranks > 1) exchange_starts(a, scratch, launch);
  const bool is_stuck = *reinterpret_cast<volatile std::uint32_t*>(&a.control->stuck) != 0;
  if (__syncthreads_or(static_cast<int>(is_stuck)) != 0) return false;
  trace.mark(Mark::kCounts);
  make_tables(a, scratch, tables, shared.tables.results);
  __syncthreads();
  place_rows(a, scratch, tables, tokens, launch);
  fill_counters(a, scratch, tables);
  if (blockIdx.x == 0 && thread == 0) *a.faults = scratch.totals[a.slots];
  __syncthreads();
  trace.mark(Mark::kTables);
  send_rows<T>(a, scratch, tables, tokens);
  __syncthreads();
  trace.mark(Mark::kRows);
  sm90::fence_async_shared();  // the scratch is stages again
  __syncthreads();
  return true;
}

}  // namespace orrery::fused_moe

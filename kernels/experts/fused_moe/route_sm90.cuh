#pragma once

// Which experts a block's tokens go to, where their rows lie, and x in these rows, as bf16 or, with
// a scale for each row, as fp8.

#include <cmath>
#include <cstdint>

#include "kernels/cuda/prefix.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/index_shuffling/choose.cuh"

namespace orrery::fused_moe {

constexpr int kRouted = 64;  // tokens whose scores are made together
constexpr int kBoxBytes = 64 * 128;
constexpr std::uint16_t kNoExpert = 0xFFFF;
constexpr float kLeastSum = 1e-20f;

// Tokens of a block: [first, first + count).
struct Stretch {
  int first;
  int count;
};
__device__ inline Stretch stretch_of(const Arguments& a) {
  const int first = static_cast<int>(blockIdx.x) * a.block_tokens;
  return {.first = first, .count = max(min(a.tokens - first, a.block_tokens), 0)};
}

// --- logits --------------------------------------------------------------------------------------

// By one thread: x and the router, 64 tokens after the other.
__device__ inline void copy_for_logits(Shared& shared, const Maps& maps, const Arguments& a,
                                       const Stretch& tokens, Ring<Config::kStages>& ring) {
  const int boxes = (a.experts + 63) / 64;
  for (int token = 0; token < tokens.count; token += kRouted) {
#pragma unroll 1
    for (int step = 0; step < a.router_steps; ++step) {
      std::uint64_t* const full = &shared.gemm.stages.full[ring.stage];
      sm90::barrier_wait(&shared.gemm.stages.empty[ring.stage], ring.phase ^ 1);
      sm90::barrier_arrive_expect(full, static_cast<std::uint32_t>((boxes + 1) * kBoxBytes));
      sm90::load_2d(shared.gemm.x[ring.stage], &maps.x, step * Config::kK, tokens.first + token,
                    full);
      for (int box = 0; box < boxes; ++box) {
        sm90::load_2d(shared.gemm.w[ring.stage] + box * kBoxBytes, &maps.router, step * Config::kK,
                      box * 64, full);
      }
      ring.advance();
    }
  }
}

// By a warpgroup: those of 128 experts each. Rows of the router that are not there multiply what
// happens to lie in the stage, and nobody looks.
__device__ inline void make_logits(Shared& shared, const Arguments& a, const Stretch& tokens,
                                   Ring<Config::kStages>& ring, int group) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  for (int token = 0; token < tokens.count; token += kRouted) {
    sm90::barrier_wait(&shared.gemm.stages.full[ring.stage], ring.phase);
    if (group * 128 >= a.experts) {
      tiles::skip(shared.gemm.stages, ring, a.router_steps);
      continue;
    }
    swap_ab::Sums<Config, kRouted> d;
    swap_ab::multiply<Config, kRouted>(d, shared.gemm, ring, a.router_steps, group);
    const int rows = min(tokens.count - token, kRouted);
    float* const scores = a.scores + static_cast<std::int64_t>(tokens.first + token) * a.experts;
#pragma unroll
    for (int i = 0; i < Config::kBlocks * kRouted / 2; ++i) {
      const int block = i / (kRouted / 2);
      const int at = i % (kRouted / 2);
      const int expert =
          group * 128 + block * 64 + thread / 32 * 16 + thread % 32 / 4 + at / 2 % 2 * 8;
      const int row = at / 4 * 8 + thread % 4 * 2 + at % 2;
      if (expert < a.experts && row < rows) scores[row * a.experts + expert] = d[block][at];
    }
  }
}

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
  for (int local = static_cast<int>(threadIdx.x) / 32; local < tokens.count; local += kWarps) {
    const int token = tokens.first + local;
    float* const row = a.scores + static_cast<std::int64_t>(token) * a.experts;
    float values[kVectors][kScores];
    float most = -INFINITY;
    bool is_bad = false;
#pragma unroll
    for (int i = 0; i < kVectors * kScores; ++i) {
      const int expert = (i / kScores * 32 + lane) * kScores + i % kScores;
      float& value = values[i / kScores][i % kScores];
      value = expert < a.experts ? row[expert] : -INFINITY;
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
      is_bad |= expert < a.experts && isnan(value);
      if (expert < a.experts) row[expert] = value;
    }
    __syncwarp();
    const Scores<float> scores{.data = a.scores,
                               .bias = a.correction_bias,
                               .experts = a.experts,
                               .groups = a.groups,
                               .topk_groups = a.topk_groups,
                               .best_two = a.correction_bias != nullptr,
                               .aligned = false};
    TokenChoice<32, kVectors> choice(scores, values, token, lane);
    for (int k = 0; k < a.topk; ++k) choice.choose(k, lane, k + 1 < a.topk);
    const bool is_choice = lane < a.topk;
    float weight = is_choice ? row[choice.picked] : 0.0f;
    if (a.normalises) weight /= warp_sum(weight) + kLeastSum;
    is_bad = __any_sync(0xFFFFFFFFU, is_bad);
    if (is_choice) {
      scratch.chosen[local * a.topk + lane] = static_cast<std::uint16_t>(choice.picked);
      a.token_weights[static_cast<std::int64_t>(token) * a.topk + lane] = weight * a.scale;
      atomicAdd(&scratch.own[choice.picked], 1);
    }
    if (lane == 0 && is_bad) atomicAdd(&scratch.own[a.experts], 1);
  }
}

// --- counts of all blocks ------------------------------------------------------------------------

// Says what this block has, and finds what blocks before it and all have. A count travels with the
// number of the launch beside it, as in index_shuffling.
__device__ inline void exchange_counts(const Arguments& a, Scratch& scratch, std::uint32_t launch) {
  constexpr int kBatch = 12;  // loads in flight
  const int columns = a.experts + 1;
  const int thread = static_cast<int>(threadIdx.x);
  for (int column = thread; column < columns; column += kThreads) {
    const unsigned long long word = numbered(launch, scratch.own[column]);
    store_word(a.counts + static_cast<std::int64_t>(blockIdx.x) * columns + column, word);
  }
  const int parts = kThreads / columns;  // at least 1: experts are at most 256
  if (thread >= parts * columns) return;
  const int column = thread % columns;
  const int blocks = static_cast<int>(gridDim.x);
  const int each = (blocks + parts - 1) / parts;
  const int begin = thread / columns * each;
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
        found[i] = load_word(a.counts +
                             static_cast<std::int64_t>(min(first + i, end - 1)) * columns + column);
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

// --- counts of all ranks -------------------------------------------------------------------------

// By one warp: where own results begin.
__device__ inline void make_starts(const Arguments& a, Scratch& scratch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int turn = lane; turn < a.experts; turn += 32) {
    scratch.starts[turn] = scratch.totals[expert_of(a, turn)];
  }
  __syncwarp();
  warp_prefix(scratch.starts, a.experts);
}

// By one block: its rank's starts to all ranks.
__device__ inline void say_starts(const Arguments& a, const Scratch& scratch,
                                  std::uint32_t launch) {
  const int columns = a.experts + 1;
  for (int i = static_cast<int>(threadIdx.x); i < a.ranks * columns; i += kThreads) {
    const int turn = i % columns;
    store_word_of_ranks(starts_of(a, a.areas[i / columns], a.rank, launch) + turn,
                        numbered(launch, scratch.starts[turn]));
  }
}

// A thread for each expert: its rows from all ranks, and from those before this one. Who has the
// starts of a rank knows that it has begun this launch, and so ended the one before.
__device__ inline void hear_starts(const Arguments& a, Scratch& scratch, std::uint32_t launch) {
  const int expert = static_cast<int>(threadIdx.x);
  if (expert >= a.experts) return;
  const int turn = turn_of(a, expert);
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
    if (rank == a.rank) scratch.first[expert] = rows;
    rows += static_cast<std::int32_t>(static_cast<std::uint32_t>(ends[rank]) -
                                      static_cast<std::uint32_t>(begins[rank]));
  }
  scratch.rows[expert] = rows;
}

// All of it, by all threads.
__device__ inline void exchange_starts(const Arguments& a, Scratch& scratch, std::uint32_t launch) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 32) make_starts(a, scratch);
  __syncthreads();
  if (a.ranks == 1) {
    if (thread < a.experts) scratch.rows[thread] = scratch.totals[thread];
  } else {
    if (blockIdx.x == 0) say_starts(a, scratch, launch);
    hear_starts(a, scratch, launch);
  }
  __syncthreads();
}

// By one warp: where rows and tiles begin.
__device__ inline void make_tables(const Arguments& a, Scratch& scratch, Tables& tables) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int expert = lane; expert < a.experts; expert += 32) {
    const int rows = scratch.rows[expert];
    const int tile_rows = Config::tile_rows(rows);
    scratch.tiles[expert] = (rows + tile_rows - 1) / tile_rows;
    tables.row_start[expert] = rows;
  }
  __syncwarp();
  warp_prefix(tables.row_start, a.experts);
  warp_prefix(scratch.tiles, a.experts);
  __syncwarp();
  for (int expert = lane; expert <= a.experts; expert += 32) {
    tables.tile_start[expert] = static_cast<std::uint16_t>(scratch.tiles[expert]);
  }
  // One and a half rounds of the blocks, four where rows are quantised in between.
  const int least =
      least_tiles_between(a.h_fp8 == nullptr ? 3 : 8, static_cast<int>(gridDim.x), a.columns[0]);
  const std::int32_t* const starts = scratch.tiles + a.rank * a.own_experts;
  for (int expert = lane; expert < a.own_experts; expert += 32) {
    tables.waiting[expert] = static_cast<std::uint8_t>(experts_waiting(starts, expert, least));
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
      const int expert = at < choices.end ? scratch.chosen[at] : kNoExpert;
      const unsigned same = __match_any_sync(0xFFFFFFFFU, expert);
      const int before = __popc(same & ((1U << lane) - 1));
      if (expert != kNoExpert) place(at, expert, before);
      __syncwarp();
      if (expert != kNoExpert && before == 0) placed[expert] += __popc(same);
      __syncwarp();
    }
  };
  for (int expert = lane; expert < a.experts; expert += 32) placed[expert] = 0;
  __syncwarp();
  for_each([](int /*at*/, int /*expert*/, int /*before*/) {});
  __syncthreads();
  for (int expert = static_cast<int>(threadIdx.x); expert < a.experts; expert += kThreads) {
    int next = scratch.before[expert];
    for (int warp = 0; warp < choices.warps; ++warp) {
      const int count = scratch.placed[warp][expert];
      scratch.placed[warp][expert] = next;
      next += count;
    }
  }
  __syncthreads();
  for_each([&](int at, int expert, int before) {
    const int of_rank = placed[expert] + before;
    const int row = scratch.first[expert] + of_rank;  // of the expert
    const int result = scratch.starts[turn_of(a, expert)] + of_rank;
    scratch.place[at] = first_row_of(tables, a, expert) + row;
    a.row_token[result] = tokens.first + at / a.topk;
    store_word(a.row_tile + result, numbered(launch, tile_of(tables, expert, row)));
    a.token_rows[static_cast<std::int64_t>(tokens.first) * a.topk + at] = result;
  });
}

// What rows and tiles that are not there, or not this rank's, would have added to the counters of
// tiles; each block has some tiles.
__device__ inline void fill_counters(const Arguments& a, const Scratch& scratch,
                                     const Tables& tables) {
  const int blocks = static_cast<int>(gridDim.x);
  const int tiles = tables.tile_start[a.experts];
  const Area& area = a.areas[a.rank];
  for (int tile = static_cast<int>(blockIdx.x + threadIdx.x * gridDim.x); tile < a.most_tiles;
       tile += kThreads * blocks) {
    int rows = 0;              // that come to an own expert
    bool has_results = false;  // of own tokens
    if (tile < tiles) {
      const int expert = last_at_most(tables.tile_start, a.experts, tile);
      const int tile_rows = tile_rows_of(tables, expert);
      const int begin = (tile - tables.tile_start[expert]) * tile_rows;
      const int end = min(scratch.rows[expert], begin + tile_rows);
      if (rank_of(a, expert) == a.rank) rows = end - begin;
      const int own = scratch.first[expert];
      has_results = own < end && own + scratch.totals[expert] > begin && scratch.totals[expert] > 0;
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
      fp8* const row = row_of_choice<fp8>(a, scratch, local * a.topk + k);
#pragma unroll
      for (int i = 0; i < kSentAhead; ++i) {
        const int vector = first + 32 * i;
        if (vector < vectors) *reinterpret_cast<uint2*>(row + vector * kVectorSize) = packed[i];
      }
    }
  }
  if (lane < a.topk) {
    const int choice = local * a.topk + lane;
    const Area& area = a.areas[rank_of(a, scratch.chosen[choice])];
    area.row_scales[scratch.place[choice]] = peak / kFp8Max;
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
    if constexpr (sizeof(T) == 1) {
      send_token_as_fp8(a, scratch, x, local);
    } else {
      for (int first = lane; first < vectors; first += 32 * kSentAhead) {
        uint4 held[kSentAhead];
        load_vectors(held, x, first, vectors);
        for (int k = 0; k < a.topk; ++k) {
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
    if (lane >= a.topk) continue;
    const int at = local * a.topk + lane;
    const int expert = scratch.chosen[at];
    const int tile = tile_of(tables, expert, scratch.place[at] - first_row_of(tables, a, expert));
    std::uint32_t* const counter = &a.areas[rank_of(a, expert)].arrived[tile];
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
template <typename T>
__device__ inline bool route(Shared& shared, Tables& tables, const Maps& maps, const Arguments& a,
                             Ring<Config::kStages>& ring, std::uint32_t launch) {
  const Stretch tokens = stretch_of(a);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 128) {
    if (thread == 0) copy_for_logits(shared, maps, a, tokens, ring);
  } else {
    make_logits(shared, a, tokens, ring, thread / 128 - 1);
  }
  __syncthreads();
  Scratch& scratch = *reinterpret_cast<Scratch*>(shared.gemm.w);
  for (int i = thread; i <= a.experts; i += kThreads) {
    scratch.totals[i] = scratch.before[i] = scratch.own[i] = scratch.first[i] = 0;
  }
  __syncthreads();
  if (a.experts <= 128) {
    choose_experts<1>(a, scratch, tokens);
  } else {
    choose_experts<2>(a, scratch, tokens);
  }
  __syncthreads();
  exchange_counts(a, scratch, launch);
  __syncthreads();
  exchange_starts(a, scratch, launch);
  const bool is_stuck = *reinterpret_cast<volatile std::uint32_t*>(&a.control->stuck) != 0;
  if (__syncthreads_or(static_cast<int>(is_stuck)) != 0) return false;
  if (thread < 32) make_tables(a, scratch, tables);
  __syncthreads();
  place_rows(a, scratch, tables, tokens, launch);
  fill_counters(a, scratch, tables);
  if (blockIdx.x == 0 && thread == 0) *a.faults = scratch.totals[a.experts];
  __syncthreads();
  send_rows<T>(a, scratch, tables, tokens);
  __syncthreads();
  sm90::fence_async_shared();  // the scratch is stages again
  __syncthreads();
  return true;
}

}  // namespace orrery::fused_moe

#pragma once

// What the parts of fused_moe share: the arguments, the tables of a block, the counters.

#include <cstdint>

#include "kernels/cuda/flags.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/fused_moe/slot_order.h"
#include "kernels/experts/fused_moe/task_order.h"
#include "kernels/experts/grouped_gemm/swap_ab_sm90.cuh"

namespace orrery::fused_moe {

constexpr int kMostRanks = static_cast<int>(kMostFusedRanks);
constexpr int kMostSlots = static_cast<int>(kMostFusedExperts + kMostFusedRanks * kMostFusedShared);
constexpr int kSharedSlots = static_cast<int>(kFusedSharedSlots);
constexpr int kWarps = 12;  // of a block
constexpr int kThreads = 32 * kWarps;

enum class Step : std::uint8_t { kFirst, kSecond };

// A tile of one layer of an expert.
struct Task : swap_ab::Task {
  Step step;
  int tile;           // of rows, of all experts
  int row_of_expert;  // its first row
};

// Of tiles of T, bf16 or fp8, which differ in the columns of a stage alone. Rows of x of an fp8
// tile and rows of w are scaled in registers.
template <typename T>
struct ConfigOf : swap_ab::Config<T, static_cast<int>(kFusedTileRows), 2, 4, 2> {
  using Task = fused_moe::Task;
  static constexpr bool kScalesColumns = false;
  static constexpr bool kScalesRows = false;
};
using Config = ConfigOf<bf16>;  // of logits, and of what both have alike

// Launches count up what earlier ones have left: each adds as much to every counter, whatever the
// routing (fill_counters), so that a launch knows what a complete one has.
constexpr std::uint32_t kArrivals = 256;  // of a tile's rows, at most Config::kRows of them

// What a wait that ended in vain was for.
enum class Wait : std::uint32_t {
  kNone,
  kLogits,
  kCounts,
  kStarts,
  kRows,
  kFirst,
  kQuantized,
  kSecond
};

// What ranks write into each other's memory. Rows of x lie with the experts, sorted by expert, in
// each by the rank whose tokens they are of. What experts make of them goes back to that rank: its
// results lie in the order in which it has sorted its own choices (`turn`).
struct Area {
  void* rows;                  // T, [ranks * most_tokens * min(topk, own experts), hidden]
  float* row_scales;           // of these, of fp8 alone
  bf16* results;               // [most_tokens * topk, hidden]; bf16 rows of one rank are these
  std::uint32_t* arrived;      // [most_tiles]: rows of a tile that are there
  std::uint32_t* second_done;  // [most_tiles]: halves of tiles of the second layer, with own rows
  // [2][ranks][slots + 1], of odd and even launches: where a rank's results of each turn begin,
  // launch << 32. A rank may be a launch ahead of another, not two.
  unsigned long long* starts;
};

// Experts are told by slots (slot_order.h). `topk` are all that a token goes to, `chosen` of them
// by its scores.
struct Arguments {
  const bf16* x;
  const float* correction_bias;  // [routed], or null
  const bf16* logit_bias;        // the same
  const std::int32_t* places;    // the same: where experts lie; null: in order (slot_order.h)
  float* scores;                 // [tokens, routed]
  float* logits;                 // [logit_parts][tokens, routed]
  std::uint32_t* logits_made;    // [blocks]: launch in which its part was made last
  std::int32_t* faults;          // [1]
  bf16* y;
  Area areas[kMostRanks];        // of all ranks
  std::int32_t* row_token;       // [tokens * topk] of own results
  unsigned long long* row_tile;  // of the same, of the tiles of all experts, launch << 32
  std::int32_t* token_rows;      // [tokens, topk]
  float* token_weights;          // [tokens, topk]
  unsigned long long* counts;    // [blocks, slots + 1]: count, launch << 32
  std::int32_t* row_starts;      // [blocks, slots + 1], of more than kSharedSlots
  std::uint32_t* first_done;     // [most_tiles]: halves of tiles of the first layer
  std::uint32_t* quantized;      // [most_tiles]: rows between the layers that are fp8
  const bf16* h;                 // what lies between the layers, [most_rows, ffn]
  fp8* h_fp8;                    // the same, and:
  std::uint32_t* h_peaks;        // [most_rows]: bits of the largest |h|, 0 once it is used
  float* h_scales;               // [most_rows]
  Control* control;
  tiles::Arguments layers[2];     // n, k_steps, scales and y
  const float* shared_scales[2];  // of shared experts' w, of fp8 alone
  int columns[2];                 // tiles of columns
  int tokens;                     // of this rank
  int hidden;
  int slots;   // of all ranks, those of each in a row
  int own;     // slots of each rank
  int shared;  // of these, the first
  int routed;  // experts, of all ranks
  int topk;
  int chosen;
  int capacity;  // rows that an expert takes of a rank
  int groups;
  int topk_groups;
  int rank;
  int ranks;
  int block_tokens;
  int most_tiles;
  int logit_parts;  // 1: blocks make the logits of their own tokens
  int logit_steps;  // of each part, at most
  int router_steps;
  bool is_gated;
  bool is_relu;
  bool is_sigmoid;
  bool normalises;
  float scale;
};

struct Maps {
  CUtensorMap x;          // boxes of 64 rows
  CUtensorMap router;     // the same
  CUtensorMap rows[4];    // boxes of 16, 32, 64 and 128 rows
  CUtensorMap w1;         // boxes of 64 rows of a gated layer, of 256 of another
  CUtensorMap shared_w1;  // the same; w2 in boxes of 256 rows
  CUtensorMap shared_w2;
  swap_ab::Maps layers[2];          // x and w of the second, y of both
  CUtensorMap results[kMostRanks];  // boxes of 32 rows of 64 columns, of several ranks alone
};

// Where rows and tiles of rows begin, of each slot of all ranks and behind the last. Where slots
// are many, rows lie in global memory, of each block its own.
struct Tables {
  std::int32_t* row_start;
  std::uint16_t* tile_start;
  std::uint8_t* waiting;  // of own slots: experts_waiting
};
struct TableMemory {
  std::int32_t results;  // of own tokens
  std::int32_t row_start[kSharedSlots + 1];
  std::uint16_t tile_start[kMostSlots + 1];
  std::uint8_t waiting[kMostSlots];
};

// The tables lie behind the last stage, in what its alignment leaves empty.
struct Shared {
  [[no_unique_address]] swap_ab::Shared<Config> gemm;
  TableMemory tables;
};
template <typename T>
__device__ inline swap_ab::Shared<ConfigOf<T>>& stages_of(Shared& shared) {
  static_assert(sizeof(swap_ab::Shared<ConfigOf<T>>) == sizeof(shared.gemm));
  return reinterpret_cast<swap_ab::Shared<ConfigOf<T>>&>(shared.gemm);
}
constexpr std::size_t kSharedBytes = sizeof(Shared);
static_assert(kSharedBytes <= 232'448, "all that an SM has");

__device__ inline Tables tables_in(Shared& shared, const Arguments& a) {
  TableMemory& at = shared.tables;
  return {.row_start = a.slots <= kSharedSlots
                           ? at.row_start
                           : a.row_starts + static_cast<std::int64_t>(blockIdx.x) * (a.slots + 1),
          .tile_start = at.tile_start,
          .waiting = at.waiting};
}

constexpr std::int32_t kDropped = -1;  // row of a choice that its expert does not take

// What lies in place of the stages while no copy is under way.
struct Scratch {
  std::int32_t totals[kMostSlots + 2];
  std::int32_t before[kMostSlots + 2];
  std::int32_t tiles[kMostSlots + 2];
  std::int32_t own[kMostSlots + 2];     // counts of the block; behind those of slots its faults
  std::int32_t rows[kMostSlots + 2];    // of each slot, from all ranks
  std::int32_t first[kMostSlots + 2];   // of them, those of ranks before this one
  std::int32_t starts[kMostSlots + 2];  // of own results of each turn
  // Rows of a slot of this rank that are placed, counted on by each warp in its part of choices.
  std::int32_t placed[kWarps][kMostSlots];
  alignas(16) std::uint16_t chosen[kMostBlockChoices];
  alignas(16) std::int32_t place[kMostBlockChoices];  // row of each choice, or kDropped
};
static_assert(sizeof(Scratch) <=
              sizeof(swap_ab::Shared<Config>::w) + sizeof(swap_ab::Shared<Config>::x));

// --- waiting -------------------------------------------------------------------------------------

__device__ inline std::uint64_t now() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}
// A wait that lasts longer says so and ends; those that follow end with it.
constexpr std::uint64_t kPatience = 2'000'000'000;  // ns

__device__ inline bool gives_up(Control* control, std::uint64_t begin, Wait wait, int place) {
  if (*reinterpret_cast<volatile std::uint32_t*>(&control->stuck) != 0) return true;
  if (now() - begin < kPatience) return false;
  if (atomicCAS(&control->stuck, 0, static_cast<std::uint32_t>(wait)) == 0) {
    control->place = static_cast<std::uint32_t>(place);
  }
  return true;
}

__device__ inline bool reaches(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}
constexpr int kPolls = 64;  // between looks at the clock
__device__ inline void await(Control* control, const std::uint32_t* counter, std::uint32_t target,
                             Wait wait, int place) {
  if (reaches(sm90::load_acquire(counter), target)) return;
  const std::uint64_t begin = now();
  for (int poll = 1; !reaches(sm90::load_acquire(counter), target); ++poll) {
    if (poll % kPolls == 0 && gives_up(control, begin, wait, place)) return;
    __nanosleep(100);
  }
}

// As await, of what other ranks count up. Who is in no hurry looks every `pause` ns.
__device__ inline void await_ranks(Control* control, const std::uint32_t* counter,
                                   std::uint32_t target, Wait wait, int place,
                                   unsigned pause = 100) {
  if (reaches(sm90::load_acquire_system(counter), target)) return;
  const std::uint64_t begin = now();
  for (int poll = 1; !reaches(sm90::load_acquire_system(counter), target); ++poll) {
    if (poll % kPolls == 0 && gives_up(control, begin, wait, place)) return;
    __nanosleep(pause);
  }
}

// A word that travels with the number of its launch.
__device__ inline unsigned long long numbered(std::uint32_t launch, std::int32_t value) {
  return static_cast<unsigned long long>(launch) << 32 | static_cast<std::uint32_t>(value);
}

__device__ inline void store_word(unsigned long long* word, unsigned long long value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline unsigned long long load_word(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
// The same between GPUs.
__device__ inline void store_word_of_ranks(unsigned long long* word, unsigned long long value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline unsigned long long load_word_of_ranks(const unsigned long long* word) {
  unsigned long long value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// --- ranks ---------------------------------------------------------------------------------------

__device__ inline int rank_of(const Arguments& a, int slot) { return rank_of_slot(slot, a.own); }
__device__ inline int slot_of(const Arguments& a, int expert) {
  return slot_of_expert(expert, a.places, a.own, a.shared);
}
__device__ inline int turn_of(const Arguments& a, int slot) {
  return turn_of_slot(slot, a.own, a.ranks);
}
// Where `rank` says that its results of each turn begin.
__device__ inline unsigned long long* starts_of(const Arguments& a, const Area& area, int rank,
                                                std::uint32_t launch) {
  return area.starts + (static_cast<std::int64_t>(launch % 2) * a.ranks + rank) * (a.slots + 1);
}

// Where a task's weights begin: the row of its expert's first column, of a gated layer (`halves` 2)
// by how many rows the other half lies behind, and of the second layer the first column of w. A
// shared expert is one of all its slots' columns.
struct Weights {
  int row;
  int other;
  int column;
  __device__ Weights(const Arguments& a, const Task& task, int halves) {
    const bool is_second = task.step == Step::kSecond;
    const int n = a.layers[is_second ? 1 : 0].n;
    if (task.group < a.shared) {
      row = is_second ? 0 : task.group * n;
      other = a.shared * n;
      column = is_second ? task.group * a.layers[0].n : 0;
    } else {
      row = (task.group - a.shared) * halves * n;
      other = n;
      column = 0;
    }
  }
};

// --- tables --------------------------------------------------------------------------------------

__device__ inline int tile_rows_of(const Tables& tables, int slot) {
  return Config::tile_rows(tables.row_start[slot + 1] - tables.row_start[slot]);
}
// Rows of a slot are counted from its first on, those of an area from the first slot of its rank
// on.
__device__ inline int tile_of(const Tables& tables, int slot, int row_of_slot) {
  return tables.tile_start[slot] + row_of_slot / tile_rows_of(tables, slot);
}
__device__ inline int first_row_of(const Tables& tables, const Arguments& a, int slot) {
  return tables.row_start[slot] - tables.row_start[rank_of(a, slot) * a.own];
}

}  // namespace orrery::fused_moe

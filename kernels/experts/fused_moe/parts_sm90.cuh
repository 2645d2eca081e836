#pragma once

// What the parts of fused_moe share: the arguments, the tables of a block, the counters.

#include <cstdint>

#include "kernels/cuda/flags.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/fused_moe/task_order.h"
#include "kernels/experts/grouped_gemm/swap_ab_sm90.cuh"

namespace orrery::fused_moe {

constexpr int kMostExperts = static_cast<int>(kMostFusedExperts);
constexpr int kMostTopk = static_cast<int>(kMostFusedTopk);
constexpr int kMostRanks = static_cast<int>(kMostFusedRanks);
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
  static constexpr bool kSharesScales = false;
};
using Config = ConfigOf<bf16>;  // of logits, and of what both have alike

// Launches count up what earlier ones have left: each adds as much to every counter, whatever the
// routing (fill_counters), so that a launch knows what a complete one has.
constexpr std::uint32_t kArrivals = 256;  // of a tile's rows, at most Config::kRows of them

// What a wait that ended in vain was for.
enum class Wait : std::uint32_t { kNone, kCounts, kStarts, kRows, kFirst, kQuantized, kSecond };

// What ranks write into each other's memory. Rows of x lie with the experts, sorted by expert, in
// each by the rank whose tokens they are of. What experts make of them goes back to that rank: its
// results lie in the order in which it has sorted its own choices (`turn`).
struct Area {
  void* rows;                  // T, [ranks * most_tokens * min(topk, own experts), hidden]
  float* row_scales;           // of these, of fp8 alone
  bf16* results;               // [most_tokens * topk, hidden]; bf16 rows of one rank are these
  std::uint32_t* arrived;      // [most_tiles]: rows of a tile that are there
  std::uint32_t* second_done;  // [most_tiles]: halves of tiles of the second layer, with own rows
  // [2][ranks][experts + 1], of odd and even launches: where a rank's results of each turn begin,
  // launch << 32. A rank may be a launch ahead of another, not two.
  unsigned long long* starts;
};

struct Arguments {
  const bf16* x;
  const float* correction_bias;  // [experts], or null
  float* scores;                 // [tokens, experts]
  std::int32_t* faults;          // [1]
  bf16* y;
  Area areas[kMostRanks];        // of all ranks
  std::int32_t* row_token;       // [tokens * topk] of own results
  unsigned long long* row_tile;  // of the same, of the tiles of all experts, launch << 32
  std::int32_t* token_rows;      // [tokens, topk]
  float* token_weights;          // [tokens, topk]
  unsigned long long* counts;    // [blocks, experts + 1]: count, launch << 32
  std::uint32_t* first_done;     // [most_tiles]: halves of tiles of the first layer
  std::uint32_t* quantized;      // [most_tiles]: rows between the layers that are fp8
  const bf16* h;                 // what lies between the layers, [most_rows, ffn]
  fp8* h_fp8;                    // the same, and:
  std::uint32_t* h_peaks;        // [most_rows]: bits of the largest |h|, 0 once it is used
  float* h_scales;               // [most_rows]
  Control* control;
  tiles::Arguments layers[2];  // n, k_steps, scales and y
  int columns[2];              // tiles of columns
  int tokens;                  // of this rank
  int hidden;
  int experts;      // of all ranks, those of each in a row
  int own_experts;  // of each rank
  int topk;
  int groups;
  int topk_groups;
  int rank;
  int ranks;
  int block_tokens;
  int most_tiles;
  int router_steps;
  bool is_gated;
  bool is_relu;
  bool is_sigmoid;
  bool normalises;
  float scale;
};

struct Maps {
  CUtensorMap x;                    // boxes of 64 rows
  CUtensorMap router;               // the same
  CUtensorMap rows[4];              // boxes of 16, 32, 64 and 128 rows
  CUtensorMap w1;                   // boxes of 64 rows of a gated layer, of 256 of another
  swap_ab::Maps layers[2];          // x and w of the second, y of both
  CUtensorMap results[kMostRanks];  // boxes of 32 rows of 64 columns, of several ranks alone
};

// Where rows and tiles of rows begin, of each expert of all ranks and behind the last.
struct Tables {
  std::int32_t row_start[kMostExperts + 1];
  std::uint16_t tile_start[kMostExperts + 1];
  std::uint8_t waiting[kMostExperts];  // of own experts: experts_waiting
};

struct Shared {
  swap_ab::Shared<Config> gemm;
};
template <typename T>
__device__ inline swap_ab::Shared<ConfigOf<T>>& stages_of(Shared& shared) {
  static_assert(sizeof(swap_ab::Shared<ConfigOf<T>>) == sizeof(shared.gemm));
  return reinterpret_cast<swap_ab::Shared<ConfigOf<T>>&>(shared.gemm);
}
// The tables lie behind it: together with what they are aligned by, that is all that an SM has.
constexpr std::size_t kSharedBytes = sizeof(Shared) + sizeof(Tables);
static_assert(kSharedBytes <= 232'448, "of an SM");

// What lies in place of the stages while no copy is under way.
struct Scratch {
  std::int32_t totals[kMostExperts + 2];
  std::int32_t before[kMostExperts + 2];
  std::int32_t tiles[kMostExperts + 2];
  std::int32_t own[kMostExperts + 2];     // counts of the block; behind those of experts its faults
  std::int32_t rows[kMostExperts + 2];    // of each expert, from all ranks
  std::int32_t first[kMostExperts + 2];   // of them, those of ranks before this one
  std::int32_t starts[kMostExperts + 2];  // of own results of each turn
  // Rows of an expert of this rank that are placed, counted on by each warp in its part of choices.
  std::int32_t placed[kWarps][kMostExperts];
  alignas(16) std::uint16_t chosen[kMostBlockChoices];
  alignas(16) std::int32_t place[kMostBlockChoices];  // row of each choice
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
__device__ inline void await(Control* control, const std::uint32_t* counter, std::uint32_t target,
                             Wait wait, int place) {
  if (reaches(sm90::load_acquire(counter), target)) return;
  const std::uint64_t begin = now();
  while (!reaches(sm90::load_acquire(counter), target)) {
    if (gives_up(control, begin, wait, place)) return;
    __nanosleep(100);
  }
}

// As await, of what other ranks count up.
__device__ inline void await_ranks(Control* control, const std::uint32_t* counter,
                                   std::uint32_t target, Wait wait, int place) {
  if (reaches(sm90::load_acquire_system(counter), target)) return;
  const std::uint64_t begin = now();
  while (!reaches(sm90::load_acquire_system(counter), target)) {
    if (gives_up(control, begin, wait, place)) return;
    __nanosleep(100);
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

__device__ inline int rank_of(const Arguments& a, int expert) { return expert / a.own_experts; }
// Ranks begin with their first experts at the same time, so results come back by turns: the first
// expert of each rank, the second of each, ...
__device__ inline int turn_of(const Arguments& a, int expert) {
  return expert % a.own_experts * a.ranks + expert / a.own_experts;
}
__device__ inline int expert_of(const Arguments& a, int turn) {
  return turn % a.ranks * a.own_experts + turn / a.ranks;
}
// Where `rank` says that its results of each turn begin.
__device__ inline unsigned long long* starts_of(const Arguments& a, const Area& area, int rank,
                                                std::uint32_t launch) {
  return area.starts + (static_cast<std::int64_t>(launch % 2) * a.ranks + rank) * (a.experts + 1);
}

// --- tables --------------------------------------------------------------------------------------

__device__ inline int tile_rows_of(const Tables& tables, int expert) {
  return Config::tile_rows(tables.row_start[expert + 1] - tables.row_start[expert]);
}
// Rows of an expert are counted from its first on, those of an area from the first expert of its
// rank on.
__device__ inline int tile_of(const Tables& tables, int expert, int row_of_expert) {
  return tables.tile_start[expert] + row_of_expert / tile_rows_of(tables, expert);
}
__device__ inline int first_row_of(const Tables& tables, const Arguments& a, int expert) {
  return tables.row_start[expert] - tables.row_start[rank_of(a, expert) * a.own_experts];
}

}  // namespace orrery::fused_moe

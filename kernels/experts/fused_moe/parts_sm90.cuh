#pragma once

// What the parts of fused_moe share: the arguments, the tables of a block, the counters.

#include <cstdint>

#include "kernels/cuda/flags.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/grouped_gemm/swap_ab_sm90.cuh"

namespace orrery::fused_moe {

constexpr int kMostExperts = static_cast<int>(kMostFusedExperts);
constexpr int kMostTopk = static_cast<int>(kMostFusedTopk);
constexpr int kWarps = 12;  // of a block
constexpr int kThreads = 32 * kWarps;

enum class Step : std::uint8_t { kFirst, kSecond };

// A tile of one layer of an expert.
struct Task : swap_ab::Task {
  Step step;
  int tile;  // of rows, of all experts
};

struct Config : swap_ab::Config<bf16, 160, 2, 4, 2> {
  using Task = fused_moe::Task;
};

// Launches count up what earlier ones have left: each adds as much to every counter, whatever the
// routing (fill_counters), so that a launch knows what a complete one has.
constexpr std::uint32_t kArrivals = 256;  // of a tile's rows, at most Config::kRows of them

// What a wait that ended in vain was for.
enum class Wait : std::uint32_t { kNone, kCounts, kRows, kFirst, kSecond };

struct Control {
  std::uint32_t launches;             // complete ones
  std::uint32_t blocks;               // that have read it
  std::uint32_t stuck;                // a Wait, once one has ended in vain
  std::uint32_t place;                // which counter
  unsigned long long gemm_ticket;     // next task, launch << 32
  unsigned long long combine_ticket;  // next rows to be added up, launch << 32
};

struct Arguments {
  const bf16* x;
  float* scores;         // [tokens, experts]
  std::int32_t* faults;  // [1]
  bf16* y;
  bf16* rows;                  // [tokens * topk, hidden]: of x, then of what experts make of them
  std::int32_t* row_token;     // [tokens * topk]
  std::int32_t* token_rows;    // [tokens, topk]
  float* token_weights;        // [tokens, topk]
  unsigned long long* counts;  // [blocks, experts + 1]: count, launch << 32
  std::uint32_t* arrived;      // [most_tiles]: rows
  std::uint32_t* first_done;   // [most_tiles]: halves of tiles of the first layer
  std::uint32_t* second_done;  // [most_tiles]: of the second
  Control* control;
  tiles::Arguments layers[2];  // n, k_steps and y
  int columns[2];              // tiles of columns
  int tokens;
  int hidden;
  int experts;
  int topk;
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
  CUtensorMap x;            // boxes of 64 rows
  CUtensorMap router;       // the same
  CUtensorMap rows[4];      // boxes of 16, 32, 64 and 128 rows
  CUtensorMap w1;           // boxes of 64 rows of a gated layer, of 256 of another
  swap_ab::Maps layers[2];  // x and w of the second, y of both
};

// Where rows and tiles of rows begin, of each expert and behind the last.
struct Tables {
  std::int32_t row_start[kMostExperts + 1];
  std::uint16_t tile_start[kMostExperts + 1];
};

struct Shared {
  swap_ab::Shared<Config> gemm;
};
// The tables lie behind it: together with what they are aligned by, that is all that an SM has.
constexpr std::size_t kSharedBytes = sizeof(Shared) + sizeof(Tables);
static_assert(kSharedBytes <= 232'448, "of an SM");

// What lies in place of the stages while no copy is under way.
struct Scratch {
  std::int32_t totals[kMostExperts + 2];
  std::int32_t before[kMostExperts + 2];
  std::int32_t tiles[kMostExperts + 2];
  std::int32_t own[kMostExperts + 2];  // counts of the block; behind those of experts its faults
  alignas(16) std::uint16_t chosen[kMostBlockChoices + 8];
  alignas(16) std::int32_t place[kMostBlockChoices + 8];  // row of each choice
};
static_assert(sizeof(Scratch) <= sizeof(swap_ab::Shared<Config>::w));

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

// --- tables --------------------------------------------------------------------------------------

// The last entry of table[0 .. count) that is at most `value`, where the first is and values
// repeat: of entries that are equal the last.
template <typename T>
__device__ int last_at_most(const T* table, int count, int value) {
  int low = 0;
  while (count > 1) {
    const int half = count / 2;
    if (static_cast<int>(table[low + half]) <= value) low += half;
    count -= half;
  }
  return low;
}

__device__ inline int tile_rows_of(const Tables& tables, int expert) {
  return Config::tile_rows(tables.row_start[expert + 1] - tables.row_start[expert]);
}
__device__ inline int tile_of(const Tables& tables, int expert, int row) {
  return tables.tile_start[expert] +
         (row - tables.row_start[expert]) / tile_rows_of(tables, expert);
}
__device__ inline int tile_of(const Tables& tables, const Arguments& a, int row) {
  return tile_of(tables, last_at_most(tables.row_start, a.experts, row), row);
}

}  // namespace orrery::fused_moe

#pragma once

// How the tiled grouped gemm is tiled. No CUDA.

namespace orrery {

// A work item is up to `rows` rows of one group's x against `columns` rows of its w. What this says
// is the one with MMAs of 64 rows of x each (tiled_sm90.cu).
struct TiledChoice {
  int rows = 128;
  int columns = 256;
  // Rows of a group that pass all of its w, tile by tile, before the rows behind them do; within
  // them rows of x go faster than columns of y. `rows` or less: each row of tiles by itself,
  // columns faster; at least as many as a group has: each column of tiles by itself. Other than
  // this of bf16 alone, to compare orders.
  int block_rows = 2048;
  auto operator<=>(const TiledChoice&) const = default;
};

// The one with MMAs of 64 rows of w each, as wide as a group has rows (swap_ab_sm90.cu).
inline constexpr TiledChoice kSwapAbChoice{.rows = 160, .columns = 256};

}  // namespace orrery

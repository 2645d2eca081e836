#pragma once

// How the grouped gemms that go in tiles size them: one source for their kernels, for what prices
// them and for tests. No CUDA.

#include "kernels/host_device.h"

namespace orrery::tiles {

// The narrowest MMA for so many rows: 16, 32, 64, 96, 128, 144, 160.
ORRERY_HOST_DEVICE constexpr int width_for(int rows) {
  if (rows <= 16) return 16;
  return rows <= 128 ? (rows + 31) / 32 * 32 : (rows + 15) / 16 * 16;
}

// Rows of each of as few tiles as hold so many rows of a group, all of one width of at most `most`.
ORRERY_HOST_DEVICE constexpr int even_tile_rows(int rows, int most) {
  const int tiles = (rows + most - 1) / most;
  return width_for((rows + tiles - 1) / (tiles > 1 ? tiles : 1));
}

// A tile in 2 or 4 parts, side by side, takes so many 400ths of half or a quarter of its time; 0
// where it is not cut in so many. Narrower MMAs are slower, by a little for halves, by more for
// quarters.
struct PartCosts {
  int half = 0;
  int quarter = 0;
};
inline constexpr PartCosts kTiledParts = {.half = 420, .quarter = 480};
inline constexpr PartCosts kSwapAbParts = {.half = 440, .quarter = 560};

// Into how many parts each of the last tiles is cut, which are fewer than there are blocks, and
// what they then take, in 400ths of a tile.
struct LastTiles {
  int parts = 1;
  int cost = 0;
};
ORRERY_HOST_DEVICE constexpr LastTiles cut_last_tiles(int tiles, int blocks, PartCosts costs) {
  LastTiles best{.parts = 1, .cost = tiles > 0 ? 400 : 0};
  const int all[] = {2, 4};
  for (const int parts : all) {
    const int percent = parts == 2 ? costs.half : costs.quarter;
    const int cost = (tiles * parts + blocks - 1) / blocks * percent / parts;
    if (percent > 0 && cost < best.cost) best = {.parts = parts, .cost = cost};
  }
  return best;
}

}  // namespace orrery::tiles

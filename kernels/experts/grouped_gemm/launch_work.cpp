// Waves of tiles, and rounds of items where weights are streamed. The numbers are fitted to the
// rows of grouped_gemm.csv of an H200 (graphs, cold): 1,605 that go in tiles, off by 2.4 % in the
// median and 10 % at the 95th percentile, and 1,444 whose weights are streamed, 1.9 and 9.7 %.

#include "kernels/experts/grouped_gemm/launch_work.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/experts/grouped_gemm/tile_sizes.h"
#include "kernels/launch_gpu.h"
#include "kernels/work.h"

namespace orrery {
namespace {

using launch::ceil_div;

constexpr double kBandwidth = 0.93 * launch::kBandwidth;  // that the prior counts on
constexpr std::int64_t kStepBytes = 128;                  // of a row, copied and multiplied at once

std::int64_t row_bytes(const GroupedGemmShape& shape) {
  return shape.k * (shape.dtype == DType::kFp8 ? 1 : 2);
}

// What a tile takes, in rows of x that an SM multiplies by a tile's columns of w.
struct TileCost {
  double least_rows = 0;  // fewer rows wait for w to come from the L2 cache as long
  double end_steps = 0;   // what leaves the registers of a row takes as long as so many steps of it
  double uneven = 0;      // tiles that the widest is above the mean by
};
constexpr TileCost kSwapAbBf16 = {.least_rows = 38, .end_steps = 4.3, .uneven = 1.8};
constexpr TileCost kSwapAbFp8 = {.least_rows = 39, .end_steps = 7, .uneven = 2};
constexpr TileCost kTiledBf16 = {.least_rows = 36, .end_steps = 1.7, .uneven = 0.3};
constexpr TileCost kTiledFp8 = {.least_rows = 36, .end_steps = 2.2, .uneven = 0.3};

TileCost cost_of(bool swaps_ab, DType dtype) {
  if (swaps_ab) return dtype == DType::kFp8 ? kSwapAbFp8 : kSwapAbBf16;
  return dtype == DType::kFp8 ? kTiledFp8 : kTiledBf16;
}

// Standard normal quantiles at (i + 1/2) / 8.
constexpr std::array<double, 8> kEighths = {-1.5341, -0.8871, -0.4888, -0.1573,
                                            0.1573,  0.4888,  0.8871,  1.5341};

// Rows of groups, of eight parts of them alike, where each row goes to any group as by chance.
std::array<int, kEighths.size()> rows_of_groups(const GroupedGemmLoad& load) {
  const auto active = static_cast<double>(load.active);
  const double mean = static_cast<double>(load.rows) / active;
  const double deviation = std::sqrt(mean * (1 - 1 / active));
  std::array<int, kEighths.size()> rows{};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = std::max(1, static_cast<int>(std::lround(mean + deviation * kEighths[i])));
  }
  return rows;
}

// Of all tiles.
struct Tiles {
  double number = 0;
  double cost = 0;  // sum
  double most = 0;  // of one

  void add(double tiles, double each) {
    number += tiles;
    cost += tiles * each;
    most = std::max(most, each);
  }
};

// Items go round by round, the last round in pieces along k. A round takes what its blocks can copy
// at once, and together they take what the memory gives.
LaunchWork streamed(const GroupedGemmShape& shape, const GroupedGemmLoad& load, double flops,
                    int num_sms) {
  constexpr double kRateOfSms = 6.58e12;  // bytes/s that all SMs could copy
  constexpr double kRateOfWeights = 4.83e12;
  constexpr double kRateOfRows = 2.15e12;  // in and out
  const double peak = 0.75 * (shape.dtype == DType::kFp8 ? launch::kFp8Peak : launch::kPeak);
  const StreamedItem item = streamed_item(shape, load);
  const std::int64_t items = load.active * ceil_div(shape.n, item.rows);
  const std::int64_t last = ceil_div(items % num_sms * item.cuts, num_sms);
  const std::int64_t full = items / num_sms;
  const double rounds = static_cast<double>(full) + static_cast<double>(last) / item.cuts;
  const auto item_bytes = static_cast<double>(item.rows * row_bytes(shape));
  const auto weights = static_cast<double>(load.active * shape.n * row_bytes(shape));
  const auto rows = static_cast<double>(load.rows * (row_bytes(shape) + 2 * shape.n));
  const double moving = weights / kRateOfWeights + rows / kRateOfRows;
  return {.computed = rounds * launch::kNumSms * item_bytes / kRateOfSms / (flops / peak),
          .moved = moving / ((weights + rows) / kBandwidth),
          .beside = us(4.1),
          .overlap = 4};
}

}  // namespace

double computed_in_waves(const GroupedGemmShape& shape, const GroupedGemmLoad& load, int num_sms) {
  const TiledChoice tile = choose_tile(shape, load);
  const bool swaps_ab = tile.rows == kSwapAbChoice.rows;
  const TileCost cost = cost_of(swaps_ab, shape.dtype);
  const double steps = static_cast<double>(row_bytes(shape)) / kStepBytes;
  const auto columns = static_cast<double>(ceil_div(shape.n, tile.columns));
  Tiles all;
  for (const int rows : rows_of_groups(load)) {
    const int width = swaps_ab ? tiles::even_tile_rows(rows, tile.rows) : tile.rows;
    const double groups = static_cast<double>(load.active) / kEighths.size();
    all.add(static_cast<double>(ceil_div(rows, width)) * columns * groups,
            steps * std::max<double>(cost.least_rows, width) + cost.end_steps * width);
  }
  const auto number = static_cast<std::int64_t>(std::llround(all.number));
  const tiles::LastTiles last =
      tiles::cut_last_tiles(static_cast<int>(number % num_sms), num_sms,
                            swaps_ab ? tiles::kSwapAbParts : tiles::kTiledParts);
  const std::int64_t full = number / num_sms;
  const double waves = static_cast<double>(full) + last.cost / 400.0;
  const double mean = all.cost / all.number;
  // Of less than a wave the widest tile, or a part of it, ends last.
  const double busy =
      number <= num_sms ? all.most * waves : mean * waves + cost.uneven * (all.most - mean);
  return busy * launch::kNumSms * tile.columns / (static_cast<double>(load.rows * shape.n) * steps);
}

LaunchWork tiled_launch(const GroupedGemmShape& shape, const GroupedGemmLoad& load, int num_sms) {
  if (load.rows < 1 || load.active < 1 || shape.n < 1) return {};
  constexpr double kRate = 4.2e12;
  // Tiles of fewer SMs go faster: on 108 thirteen take 1.03 to 1.15 times as long as on 132.
  const double shared = std::pow(static_cast<double>(num_sms) / launch::kNumSms, 0.4);
  return {.computed = computed_in_waves(shape, load, num_sms) * shared,
          .moved = kBandwidth / kRate,
          .beside = us(5.5),
          .overlap = 3};
}

LaunchWork grouped_gemm_launch(const GroupedGemmShape& shape, const GroupedGemmLoad& load,
                               int num_sms) {
  if (load.rows < 1 || load.active < 1 || shape.n < 1) return {};
  if (!is_streamed(load)) return tiled_launch(shape, load, num_sms);
  return streamed(shape, load, 2.0 * static_cast<double>(load.rows * shape.n * shape.k), num_sms);
}

}  // namespace orrery

#include "kernels/experts/grouped_gemm/choice.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace orrery {
namespace {

constexpr int kPanelBytes = 128;
constexpr std::int64_t kNumSms = 132;

std::int64_t element_bytes(DType dtype) { return dtype == DType::kFp8 ? 1 : 2; }

constexpr int kNarrowRows = 64;  // of w in an item
constexpr int kWideRows = 128;

constexpr int kSharedBytesPerSm = 228 * 1024;
constexpr int kReservedPerBlock = 1024;  // by the driver
constexpr int kMostStages = 24;

// Pieces with at least 2 KiB of each row: shorter ones cost more than they balance.
int cuts_for(const GroupedGemmShape& shape) {
  constexpr std::int64_t kPieceBytes = 2048;
  constexpr std::int64_t kMostCuts = 8;
  return static_cast<int>(
      std::clamp<std::int64_t>(shape.k * element_bytes(shape.dtype) / kPieceBytes, 1, kMostCuts));
}

// Whether items of 128 rows keep all SMs busy: at least two each, in rounds that are nearly full.
bool fills_with_wide_items(const GroupedGemmShape& shape, const GroupedGemmLoad& load) {
  constexpr double kFull = 0.95;
  const std::int64_t items = load.active * ((shape.n + kWideRows - 1) / kWideRows);
  const std::int64_t rounds = (items + kNumSms - 1) / kNumSms;
  return rounds >= 2 && static_cast<double>(items) >= kFull * static_cast<double>(rounds * kNumSms);
}

}  // namespace

StreamedItem streamed_item(const GroupedGemmShape& shape, const GroupedGemmLoad& load) {
  return {.rows = fills_with_wide_items(shape, load) ? kWideRows : kNarrowRows,
          .cuts = cuts_for(shape)};
}

void require_grouped_gemm_shape(const GroupedGemmShape& shape) {
  if (shape.dtype != DType::kBf16 && shape.dtype != DType::kFp16 && shape.dtype != DType::kFp8) {
    throw std::invalid_argument("grouped_gemm takes bf16, fp16 and fp8, not " +
                                std::string(to_text(shape.dtype)));
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  constexpr std::int64_t kAlignment = 16;
  const auto is_in = [](std::int64_t size, std::int64_t least, std::int64_t most) {
    return size >= least && size <= most;
  };
  const bool fits = is_in(shape.groups, 1, kGroupedGemmMaxGroups) &&
                    is_in(shape.max_rows, 0, kMost) && is_in(shape.n, 0, kMost) &&
                    is_in(shape.k, 1, kMost) &&
                    shape.n * shape.groups <= std::numeric_limits<std::int32_t>::max();
  if (!fits || shape.k * element_bytes(shape.dtype) % kAlignment != 0) {
    throw std::invalid_argument(
        "grouped_gemm: max_rows=" + std::to_string(shape.max_rows) +
        " n=" + std::to_string(shape.n) + " k=" + std::to_string(shape.k) +
        " groups=" + std::to_string(shape.groups) +
        "; groups from 1 to 512, rows of x and w a multiple of 16 bytes long, max_rows and n up to "
        "2^30, fewer than 2^31 rows of w");
  }
}

StreamedLayout streamed_layout(const StreamedTile& tile, std::int64_t groups) {
  constexpr int kOutputBytes = 2;
  constexpr int kEntryBytes = 16;  // of the table, which has one more at its end
  StreamedLayout layout;
  layout.stage_bytes = tile.panels * kPanelBytes * (tile.rows + tile.tokens);
  layout.outputs_at = tile.stages * layout.stage_bytes;
  layout.groups_at = layout.outputs_at + tile.rows * tile.tokens * kOutputBytes;
  layout.barriers_at = layout.groups_at + static_cast<int>(groups + 2) * kEntryBytes;
  layout.shared_bytes =
      layout.barriers_at + 2 * tile.stages * static_cast<int>(sizeof(std::uint64_t));
  return layout;
}

StreamedTile with_most_stages(StreamedTile tile, std::int64_t groups) {
  const int most = kSharedBytesPerSm / tile.blocks_per_sm - kReservedPerBlock;
  tile.stages = kMostStages;
  while (tile.stages > 1 && streamed_layout(tile, groups).shared_bytes > most) --tile.stages;
  return tile;
}

std::string to_text(const GroupedGemmChoice& choice) {
  if (const auto* tiled = std::get_if<TiledChoice>(&choice)) {
    return "tiled, " + std::to_string(tiled->rows) + " rows x " + std::to_string(tiled->columns) +
           " columns" +
           (tiled->block_rows == TiledChoice{}.block_rows
                ? ""
                : ", blocks of " + std::to_string(tiled->block_rows) + " rows");
  }
  const auto& tile = std::get<StreamedTile>(choice);
  return "streamed, " + std::to_string(tile.tokens) + " tokens x " + std::to_string(tile.rows) +
         " rows, panels " + std::to_string(tile.panels) + ", stages " +
         std::to_string(tile.stages) + ", " + std::to_string(tile.blocks_per_sm) +
         " per SM, cuts " + std::to_string(tile.cuts);
}

// Measured on an H200, 16 and 128 groups of w 2048 x 5120 and 5120 x 1024, 1 to 64 active groups of
// 1536 x 2048 and 2048 x 768, in bf16 and fp8:
// - Room for 64 tokens costs at most 1 % where groups have 1 to 8 rows; where they are skewed w is
//   not read again: 512 rows in proportion to 1 / rank over 16 groups take 87 us with 64, 92 with
//   32, 118 with 16 and 183 us with 8 tokens.
// - 64 rows with 512 bytes of k a stage are the best or within 2 % of it but for full rounds of
//   items of 128 rows, up to 4 % faster (fp8, 128 groups of 5120 x 1024: 153 and 157 us).
// - Two blocks per SM never gain more than 1 %.
// - Cutting the last round: 1 group of 2048 x 5120 14 -> 10 us, 9 groups 51 -> 48 us; with k = 1024
//   it costs up to 1 us.
std::vector<StreamedTile> streamed_candidates(const GroupedGemmShape& shape,
                                              const GroupedGemmLoad& load) {
  constexpr std::int64_t kLongRow = 4096;  // bytes
  constexpr int kTokens = 64;
  std::vector<StreamedTile> tiles;
  const auto add = [&](int rows, int panels, int blocks_per_sm) {
    StreamedTile tile{.tokens = kTokens,
                      .rows = rows,
                      .panels = panels,
                      .blocks_per_sm = blocks_per_sm,
                      .cuts = cuts_for(shape)};
    tile = with_most_stages(tile, shape.groups);
    constexpr int kEnoughStages = 2;
    const bool is_new = std::ranges::find(tiles, tile) == tiles.end();
    if (is_new && tile.stages >= kEnoughStages) tiles.push_back(tile);
  };
  if (streamed_item(shape, load).rows == kWideRows) add(kWideRows, 2, 1);
  // Stages of 512 bytes of k, unless the last would be half empty.
  const std::int64_t k_bytes = shape.k * element_bytes(shape.dtype);
  const bool halves = k_bytes % (std::int64_t{4} * kPanelBytes) != 0 && k_bytes < kLongRow;
  for (const int blocks_per_sm : {1, 2}) {
    add(kNarrowRows, halves ? 2 : 4, blocks_per_sm);
    add(kNarrowRows, halves ? 4 : 2, blocks_per_sm);
    add(kWideRows, 2, blocks_per_sm);
  }
  return tiles;
}

// Groups whose rows are chosen by tokens have some more and some less than the mean, so the kernels
// meet before the width of a tile does. Measured on an H200 with such rows, bf16, streaming against
// MMAs as wide as a group has rows: 128 groups of 1536 x 2048 take 207 and 207 us with 46 rows
// each, 222 and 212 with 58 and 272 and 213 with 64, where half of the groups read w twice.
// Wide MMAs against tiles of 128 rows: 271 and 373 us with 140 rows each, 414 and 544 with 256,
// 571 and 624 with 384; 64 groups of 2816 x 2048 251 and 372 us with 160, 500 and 538 with 448, 640
// and 591 with 512. Rows of w need enough steps: 128 groups of 2048 x 384 take 108 and 91 us with
// 160 rows. Where the w of a group is more than the L2 cache keeps, tiles that are not alike fall
// out of step and read it again: 256 groups of 4096 x 7168 take 13.0 and 20.5 ms with 512 rows
// each.
bool is_streamed(const GroupedGemmLoad& load) {
  constexpr std::int64_t kMostStreamedRows = 54;  // per active group
  return load.rows <= kMostStreamedRows * load.active;
}

TiledChoice choose_tile(const GroupedGemmShape& shape, const GroupedGemmLoad& load) {
  constexpr std::int64_t kMostSwapAbRows = 450;
  constexpr std::int64_t kEnoughBytes = 2048;       // of a row of w
  constexpr std::int64_t kLargeGroup = 25'000'000;  // bytes of its w
  const std::int64_t row_bytes = shape.k * element_bytes(shape.dtype);
  const bool is_large = shape.n * row_bytes >= kLargeGroup;
  const bool swaps_ab = is_large || load.rows <= kMostSwapAbRows * load.active;
  return row_bytes >= kEnoughBytes && swaps_ab ? kSwapAbChoice : TiledChoice{};
}

GroupedGemmChoice choose_grouped_gemm(const GroupedGemmShape& shape, const GroupedGemmLoad& load) {
  if (is_streamed(load)) return streamed_candidates(shape, load).front();
  return choose_tile(shape, load);
}

double computed_over_needed(const GroupedGemmLoad& load) {
  constexpr double kEmptyRows = 32;
  if (is_streamed(load)) return 1;
  return 1 + kEmptyRows * static_cast<double>(load.active) / static_cast<double>(load.rows);
}

}  // namespace orrery

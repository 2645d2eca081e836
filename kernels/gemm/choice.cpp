#include "kernels/gemm/choice.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace orrery {
namespace {

constexpr int kPanelBytes = 128;
constexpr int kBlockRows = 64;
constexpr int kRowGranule = 8;  // rows of one tile of the 128-byte swizzle
constexpr int kMultiprocessors = 132;

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

int element_bytes(DType dtype) { return dtype == DType::kFp8 ? 1 : 2; }

// The narrowest product that holds m tokens.
int tokens_for(std::int64_t m) {
  int tokens = 8;
  while (tokens < m) tokens *= 2;
  return tokens;
}

// How the blocks of a launch share the multiprocessors.
struct Arrangement {
  int split = 1;
  int panels = 1;
  int blocks_per_sm = 1;  // whose shared memory fits together
  bool fills_sm = false;  // as many blocks as fit run at once; else one per multiprocessor
};

// Rows of w per block such that all blocks run at once, or a whole number of times as many where
// that is more than kSkinnyMaxRows.
int rows_for(std::int64_t n, int split, int blocks_at_once) {
  const std::int64_t slots = blocks_at_once / split;
  const std::int64_t waves = (n + slots * kSkinnyMaxRows - 1) / (slots * kSkinnyMaxRows);
  return round_up(static_cast<int>((n + slots * waves - 1) / (slots * waves)), kRowGranule);
}

// The smallest split that leaves a block enough rows to be worth a row tile.
int rule_split(const GemmShape& shape) {
  constexpr int kEnoughRows = 48;
  int split = 1;
  while (split < kSkinnyMaxSplit && rows_for(shape.n, split, kMultiprocessors) < kEnoughRows) {
    split *= 2;
  }
  return split;
}

// None where two stages do not fit.
std::optional<SkinnyTile> tile_for(const GemmShape& shape, const Arrangement& arrangement) {
  constexpr int kSharedBytesPerSm = 228 * 1024;
  constexpr int kReservedPerBlock = 1024;  // by the driver
  constexpr int kMostStages = 24;
  const int at_once = kMultiprocessors * (arrangement.fills_sm ? arrangement.blocks_per_sm : 1);
  SkinnyTile tile{.tokens = tokens_for(shape.m),
                  .rows = rows_for(shape.n, arrangement.split, at_once),
                  .panels = arrangement.panels,
                  .split = arrangement.split,
                  .stages = kMostStages};
  const int most = kSharedBytesPerSm / arrangement.blocks_per_sm - kReservedPerBlock;
  while (tile.stages >= 2 && skinny_layout(tile).shared_bytes > most) --tile.stages;
  if (tile.stages < 2) return std::nullopt;
  return tile;
}

// fp8 that cuBLASLt refuses: it needs n and k to be multiples of 16.
bool library_takes(const GemmShape& shape) {
  constexpr int kMultiple = 16;
  return shape.dtype != DType::kFp8 || (shape.n % kMultiple == 0 && shape.k % kMultiple == 0);
}

}  // namespace

std::int64_t gemm_rows_asked(std::int64_t m) {
  constexpr std::int64_t kExact = 256;
  if (m <= kExact) return m;
  const std::int64_t step = m <= 2048 ? 64 : m <= 8192 ? 256 : 512;
  return (m + step - 1) / step * step;
}

void require_gemm_shape(const GemmShape& shape) {
  if (shape.dtype != DType::kBf16 && shape.dtype != DType::kFp8) {
    throw std::invalid_argument("gemm takes bf16 and fp8, not " +
                                std::string(to_text(shape.dtype)));
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto is_dim = [](std::int64_t size, std::int64_t least) {
    return size >= least && size <= kMost;
  };
  if (!is_dim(shape.m, 0) || !is_dim(shape.n, 0) || !is_dim(shape.k, 1)) {
    throw std::invalid_argument("gemm: m=" + std::to_string(shape.m) +
                                " n=" + std::to_string(shape.n) + " k=" + std::to_string(shape.k) +
                                "; m and n from 0, k from 1, all below 2^31");
  }
}

SkinnyLayout skinny_layout(const SkinnyTile& tile) {
  const int stage_bytes = tile.panels * kPanelBytes * (tile.rows + tile.tokens);
  // The last product of a stage reads whole blocks of 64 rows.
  const int over_read = (round_up(tile.rows, kBlockRows) - tile.rows) * kPanelBytes;
  const int sum_stride = tile.rows + 4;
  const int sums = tile.tokens * sum_stride * static_cast<int>(sizeof(float));
  const int barriers = std::max(tile.stages * stage_bytes + over_read, sums);
  return {.stage_bytes = stage_bytes,
          .sum_stride = sum_stride,
          .barriers_at = barriers,
          .shared_bytes = barriers + 2 * tile.stages * static_cast<int>(sizeof(std::uint64_t)) +
                          tile.tokens * static_cast<int>(sizeof(float))};
}

bool skinny_takes(const GemmShape& shape) {
  constexpr int kAlignment = 16;
  return shape.m >= 1 && shape.m <= kSkinnyMaxTokens &&
         shape.k * element_bytes(shape.dtype) % kAlignment == 0;
}

std::string to_text(const GemmChoice& choice) {
  if (!choice.tile) return "cuBLASLt, proposal " + std::to_string(choice.algorithm);
  const SkinnyTile& tile = *choice.tile;
  return std::to_string(tile.tokens) + " tokens x " + std::to_string(tile.rows) + " rows, panels " +
         std::to_string(tile.panels) + ", stages " + std::to_string(tile.stages) + ", split " +
         std::to_string(tile.split);
}

std::vector<SkinnyTile> skinny_candidates(const GemmShape& shape, bool overlap) {
  const int split = rule_split(shape);
  std::vector<SkinnyTile> tiles;
  const auto add = [&](const Arrangement& arrangement) {
    const std::optional<SkinnyTile> tile = tile_for(shape, arrangement);
    if (tile && std::ranges::find(tiles, *tile) == tiles.end()) tiles.push_back(*tile);
  };
  // The rule: 256 bytes of k at once, and where four stages fit in half a multiprocessor's memory,
  // half of it. What starts before its predecessor ends does better with all of it.
  const Arrangement half{.split = split, .panels = 2, .blocks_per_sm = 2};
  constexpr int kEnoughStages = 4;
  const std::optional<SkinnyTile> in_half = tile_for(shape, half);
  if (!overlap && in_half && in_half->stages >= kEnoughStages) add(half);
  for (const int panels : {2, 4, 1}) {
    for (const int of : {split, 1, 2}) {
      add({.split = of, .panels = panels, .blocks_per_sm = 1});
      add({.split = of, .panels = panels, .blocks_per_sm = 2});
      add({.split = of, .panels = panels, .blocks_per_sm = 2, .fills_sm = true});
    }
  }
  return tiles;
}

GemmChoice choose_gemm(const GemmShape& shape, bool overlap) {
  if (!skinny_takes(shape)) return {};
  const bool wins = shape.dtype == DType::kBf16 || shape.scaling == Fp8Scaling::kRowwise || overlap;
  if (!wins && library_takes(shape)) return {};
  return {.tile = skinny_candidates(shape, overlap).front()};
}

}  // namespace orrery

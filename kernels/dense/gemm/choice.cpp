#include "kernels/dense/gemm/choice.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <variant>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

constexpr int kPanelBytes = 128;
constexpr int kBlockRows = 64;
constexpr int kRowGranule = 8;  // rows of one tile of the 128-byte swizzle
constexpr int kNumSms = 132;

int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

int element_bytes(DType dtype) { return dtype == DType::kFp8 ? 1 : 2; }

// The narrowest MMA that holds m tokens.
int tokens_for(std::int64_t m) {
  int tokens = 8;
  while (tokens < m) tokens *= 2;
  return tokens;
}

// A good part of what blocks read is x, which each row tile reads anew.
bool reads_much_x(const StreamingTile& tile) { return tile.tokens == kStreamingMaxTokens; }

// How the blocks of a launch share the SMs.
struct Arrangement {
  int split = 1;
  int panels = 1;
  int blocks_per_sm = 1;  // whose shared memory fits together
  bool fills_sm = false;  // as many blocks as fit run at once; else one per SM
};

// Rows of w per block such that all blocks run at once, or a whole number of times as many where
// that is more than kStreamingMaxRows.
int rows_for(std::int64_t n, int split, int blocks_at_once) {
  const std::int64_t slots = blocks_at_once / split;
  const std::int64_t waves = (n + slots * kStreamingMaxRows - 1) / (slots * kStreamingMaxRows);
  return round_up(static_cast<int>((n + slots * waves - 1) / (slots * waves)), kRowGranule);
}

// A cluster lies within a part of the GPU. Parts have odd numbers of SMs, so that not all clusters
// of four or more would run at once if each block needed one of its own (30 of 32, on an H200, and
// the others after them).
constexpr int kMostSplitWithAllOfSm = 2;

// The smallest split that leaves a block enough rows to be worth a row tile, and enough of k. With
// 64 tokens twice the rows are worth a split in two, and none more: a small block has no room for
// enough of x.
int rule_split(const GemmShape& shape) {
  constexpr int kEnoughRows = 48;
  constexpr std::int64_t kEnoughBytes = 2048;  // of a row
  // Fewer, in two, would be row tiles of 8 to 24 rows: 40 us in place of 18 (n 512, k 28,672).
  constexpr std::int64_t kEnoughColumns = 2048;
  const bool is_wide = tokens_for(shape.m) == kStreamingMaxTokens && shape.n >= kEnoughColumns;
  const int enough = is_wide ? 2 * kEnoughRows : kEnoughRows;
  const int most = is_wide ? kMostSplitWithAllOfSm : kStreamingMaxSplit;
  int split = 1;
  while (split < most && rows_for(shape.n, split, kNumSms) < enough &&
         shape.k * element_bytes(shape.dtype) >= kEnoughBytes * 2 * split) {
    split *= 2;
  }
  return split;
}

// Of the ring of x: what is under way at the rate at which w comes, in a block's share of memory.
int x_stages_for(const StreamingTile& tile, int most) {
  constexpr int kFewTokensBytes = 32 * 1024;
  constexpr int kWideBytes = 48 * 1024;  // at kWideRows, inversely with the rows
  constexpr int kWideRows = 128;
  constexpr int kMostXStages = 8;
  int ahead = kFewTokensBytes;
  if (reads_much_x(tile)) {
    ahead = std::min(kWideBytes * std::max(kWideRows / tile.rows, 1), most * 9 / 20);
  }
  return std::clamp(ahead / streaming_layout(tile).x_bytes, 2, kMostXStages);
}

// HBM's rate times its latency is 40 KB per SM; what is asked for beyond some more only makes x
// wait, the more so the more of it there is per row of w.
int window_for(const StreamingTile& tile) {
  constexpr int kUnderWay = 64 * 1024;
  constexpr int kUnderWayPerRow = 1024;
  const int bytes =
      reads_much_x(tile) ? std::min(kUnderWay, tile.rows * kUnderWayPerRow) : kUnderWay;
  return std::clamp(bytes / streaming_layout(tile).w_bytes, 2, tile.stages);
}

// None where two stages do not fit.
std::optional<StreamingTile> tile_for(const GemmShape& shape, const Arrangement& arrangement) {
  constexpr int kSharedBytesPerSm = 228 * 1024;
  constexpr int kReservedPerBlock = 1024;  // by the driver
  constexpr int kMostStages = 24;
  const int at_once = kNumSms * (arrangement.fills_sm ? arrangement.blocks_per_sm : 1);
  StreamingTile tile{.tokens = tokens_for(shape.m),
                     .rows = rows_for(shape.n, arrangement.split, at_once),
                     .panels = arrangement.panels,
                     .split = arrangement.split,
                     .stages = kMostStages};
  const int most = kSharedBytesPerSm / arrangement.blocks_per_sm - kReservedPerBlock;
  tile.x_stages = x_stages_for(tile, most);
  while (tile.stages >= 2 && streaming_layout(tile).shared_bytes > most) --tile.stages;
  if (tile.stages < 2) return std::nullopt;
  tile.window = window_for(tile);
  return tile;
}

// fp8 that cuBLASLt refuses: it needs n and k to be multiples of 16.
bool library_takes(const GemmShape& shape) {
  constexpr int kMultiple = 16;
  return shape.dtype != DType::kFp8 || (shape.n % kMultiple == 0 && shape.k % kMultiple == 0);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

int gemm_rounds(const GemmShape& shape) {
  constexpr std::int64_t kMostRowsAtOnce = std::int64_t{kNumSms} * kStreamingMaxRows;
  if (streaming_takes(shape)) return shape.n <= kMostRowsAtOnce ? 1 : 0;
  constexpr std::int64_t kTokens = 128;
  const auto rounds = [&](std::int64_t rows) {
    return std::max<std::int64_t>(
        ceil_div(ceil_div(shape.n, rows) * ceil_div(shape.m, kTokens), kNumSms), 1);
  };
  constexpr std::int64_t kRows = 256;
  constexpr std::int64_t kMoreRows = 320;
  const bool is_narrower = rounds(kRows) * kRows <= rounds(kMoreRows) * kMoreRows;
  return static_cast<int>(rounds(is_narrower ? kRows : kMoreRows));
}

std::int64_t streaming_blocks(const GemmShape& shape) {
  if (!streaming_takes(shape)) return 0;
  const StreamingTile tile = streaming_candidates(shape).front();
  return ceil_div(shape.n, tile.rows) * tile.split;
}

double computed_in_rounds(const GemmShape& shape) {
  constexpr std::int64_t kTile = 128;
  const bool is_rowwise = shape.dtype == DType::kFp8 && shape.scaling == Fp8Scaling::kRowwise;
  if (!is_rowwise || streaming_takes(shape) || shape.m < 1 || shape.n < 1) return 1;
  const std::int64_t rounds =
      ceil_div(ceil_div(shape.m, kTile) * ceil_div(shape.n, kTile), kNumSms);
  return static_cast<double>(rounds * kNumSms * kTile * kTile) /
         static_cast<double>(shape.m * shape.n);
}

GemmShape gemm_shape(const KernelOp& op, bool has_bias) {
  return {.dtype = op.dtype,
          .m = dim(op.dims, "m"),
          .n = dim(op.dims, "n"),
          .k = dim(op.dims, "k"),
          .scaling = Fp8Scaling::kRowwise,
          .has_bias = has_bias};
}

GemmShape gemm_shape(const Plan& plan, const Op& op) {
  const auto& kernel = std::get<KernelOp>(op.body);
  const KernelSpec& spec = kernel_spec(kernel.kernel);
  const bool has_bias = std::ranges::any_of(operand_slots(plan, op).reads, [&](std::uint8_t slot) {
    return spec.slots[slot].name == "bias";
  });
  return gemm_shape(kernel, has_bias);
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

StreamingLayout streaming_layout(const StreamingTile& tile) {
  StreamingLayout layout{.x_bytes = tile.panels * kPanelBytes * tile.tokens,
                         .w_bytes = tile.panels * kPanelBytes * tile.rows,
                         .sum_stride = tile.rows + 4};
  layout.w_at = tile.x_stages * layout.x_bytes;
  // The last MMA of a stage reads whole blocks of 64 rows.
  const int over_read = (round_up(tile.rows, kBlockRows) - tile.rows) * kPanelBytes;
  const int sums = tile.tokens * layout.sum_stride * static_cast<int>(sizeof(float));
  layout.barriers_at = std::max(layout.w_at + tile.stages * layout.w_bytes + over_read, sums);
  const int barriers = 2 * (tile.stages + tile.x_stages) * static_cast<int>(sizeof(std::uint64_t));
  layout.shared_bytes =
      layout.barriers_at + barriers + tile.tokens * static_cast<int>(sizeof(float));
  return layout;
}

bool streaming_takes(const GemmShape& shape) {
  constexpr int kAlignment = 16;
  return shape.m >= 1 && shape.m <= kStreamingMaxTokens &&
         shape.k * element_bytes(shape.dtype) % kAlignment == 0;
}

std::string to_text(const GemmChoice& choice) {
  if (!choice.tile) return "cuBLASLt, proposal " + std::to_string(choice.algorithm);
  const StreamingTile& tile = *choice.tile;
  const auto number = [](int value) { return std::to_string(value); };
  return number(tile.tokens) + " tokens x " + number(tile.rows) + " rows, panels " +
         number(tile.panels) + ", stages " + number(tile.stages) + " (" + number(tile.window) +
         " under way) and " + number(tile.x_stages) + " of x, split " + number(tile.split);
}

std::vector<StreamingTile> streaming_candidates(const GemmShape& shape) {
  const int split = rule_split(shape);
  std::vector<StreamingTile> tiles;
  const auto add = [&](const Arrangement& arrangement) {
    const std::optional<StreamingTile> tile = tile_for(shape, arrangement);
    if (tile && std::ranges::find(tiles, *tile) == tiles.end()) tiles.push_back(*tile);
  };
  const auto add_fitting = [&](int of, int panels) {
    if (of <= kMostSplitWithAllOfSm) add({.split = of, .panels = panels, .blocks_per_sm = 1});
    add({.split = of, .panels = panels, .blocks_per_sm = 2});
  };
  // The rule: 256 bytes of k at once, or 512 where a row tile is small.
  constexpr int kSmallRows = 64;
  constexpr int kNarrow = 8;
  const bool is_small = rows_for(shape.n, split, kNumSms) <= kSmallRows;
  const bool is_long = is_small && split <= kMostSplitWithAllOfSm &&
                       (shape.m <= kNarrow || tokens_for(shape.m) == kStreamingMaxTokens);
  add_fitting(split, is_long ? 4 : 2);
  for (const int panels : {2, 4, 1}) {
    for (const int of : {split, 1, 2}) {
      add_fitting(of, panels);
      add({.split = of, .panels = panels, .blocks_per_sm = 2, .fills_sm = true});
    }
  }
  return tiles;
}

GemmChoice choose_gemm(const GemmShape& shape, bool overlap) {
  if (!streaming_takes(shape)) return {};
  const bool wins = shape.dtype == DType::kBf16 || shape.scaling == Fp8Scaling::kRowwise || overlap;
  if (!wins && library_takes(shape)) return {};
  return {.tile = streaming_candidates(shape).front()};
}

}  // namespace orrery

// What a launch takes as its blocks divide it (split.h), where all sequences are as long.

#include "kernels/attention/attention_decode/launch_work.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/launch_gpu.h"
#include "kernels/work.h"

namespace orrery {
namespace {

constexpr double kPeak = 0.6 * launch::kPeak;            // that the prior counts on
constexpr double kBandwidth = 0.8 * launch::kBandwidth;  // likewise
constexpr std::int32_t kHeadsOfTile = 8;                 // query heads in an MMA
constexpr std::int32_t kPartsAtOnce = 16;  // partial results that a merge has under way

// us but for the rate, fitted to the 2,489 rows of attention_decode.csv of an H200 (graphs, cold),
// which their sum is off by 3.0 % in the median and 11 % at the 95th percentile. The rate is what
// the memory streams at: left free it was 5.9 TB/s, which tiles made up for, and an H100's decodes
// came out 7 % short.
constexpr double kBegin = 3.27;
constexpr double kRate = 4.65e12;     // bytes/s
constexpr double kOverlap = 3.2;      // of tiles and bytes
constexpr double kMoreHeads = 2.5;    // of a tile, for each further 8 query heads of a kv head
constexpr double kRow = 1.9;          // a row that a block begins
constexpr double kRowHeads = 0.52;    // and for each 8 query heads of it
constexpr double kShared = 0.87;      // a row that blocks share
constexpr double kMergeHeads = 1.37;  // and for each 8 query heads and 16 partial results
constexpr double kSecond = 2.1;       // a second row that is shared with others

// A unit of one warp of a block.
double tile_us(std::int32_t element_bytes, std::int32_t head_dim) {
  if (element_bytes == 1) return head_dim == 64 ? 1.26 : 1.08;
  return head_dim == 64 ? 0.1 : 0.35;
}

std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

}  // namespace

AttentionDecodeBlocks attention_decode_blocks(const AttentionDecodeShape& shape,
                                              std::int32_t element_bytes, int num_sms) {
  const AttentionDecodeSplit split = attention_decode_split(shape, element_bytes, num_sms);
  const std::int32_t row = decode::units_of(shape.max_context, shape.window,
                                            decode::keys_per_unit(shape.head_dim, element_bytes))
                               .count;
  const std::int32_t rows = shape.seqs * (shape.kv_heads / split.heads_per_block);
  AttentionDecodeBlocks blocks{.heads = split.heads_per_block};
  if (row == 0 || rows == 0) return blocks;
  const std::int64_t units = std::int64_t{row} * rows;
  const auto most_units = static_cast<std::int32_t>(
      std::min<std::int64_t>(units, std::numeric_limits<std::int32_t>::max()));
  const std::int32_t used = decode::blocks_used(most_units, split);
  blocks.units = static_cast<std::int32_t>((units + used - 1) / used);
  // Blocks begin at multiples of `step` within rows; where some have a unit more, anywhere.
  const bool are_equal = units % used == 0;
  const std::int32_t step = are_equal ? std::gcd(blocks.units, row) : 1;
  blocks.rows = std::min((row - step + blocks.units - 1) / row + 1, rows);
  if (row == 1 || (are_equal && blocks.units % row == 0)) return blocks;
  const bool fill_rows = are_equal && row % blocks.units == 0;
  blocks.shared_rows = fill_rows || blocks.rows == 1 ? 1 : 2;
  const std::int32_t least_units = std::max(are_equal ? blocks.units : blocks.units - 1, 1);
  blocks.parts =
      fill_rows ? row / blocks.units : std::min((row + least_units - 2) / least_units + 1, used);
  return blocks;
}

LaunchWork attention_decode_launch(const AttentionDecodeShape& shape, std::int32_t element_bytes,
                                   Flops flops, int num_sms) {
  const AttentionDecodeBlocks blocks = attention_decode_blocks(shape, element_bytes, num_sms);
  if (blocks.rows == 0 || flops.value() <= 0) return {};
  const std::int32_t ratio = shape.heads / shape.kv_heads;
  const double passes = ceil_div(blocks.heads * ratio, kHeadsOfTile);
  const double more_heads = kMoreHeads * (ceil_div(ratio, kHeadsOfTile) - 1);
  const double tiles = static_cast<double>(blocks.units) * blocks.heads / decode::kWarps;
  const double computing = tile_us(element_bytes, shape.head_dim) * (1 + more_heads) * tiles;
  double beside = kBegin + blocks.rows * (kRow + kRowHeads * passes);
  if (blocks.shared_rows > 0) {
    // Beyond kFanIn in two goes.
    const double goes = blocks.parts <= decode::kFanIn
                            ? ceil_div(blocks.parts, kPartsAtOnce)
                            : decode::kFanIn / kPartsAtOnce +
                                  ceil_div(ceil_div(blocks.parts, decode::kFanIn), kPartsAtOnce);
    beside += kShared + kMergeHeads * passes * goes + kSecond * (blocks.shared_rows - 1);
  }
  return {.computed = computing * 1e-6 / (flops.value() / kPeak),
          .moved = kBandwidth / kRate * launch::longer_for_bytes(num_sms),
          .beside = us(beside),
          .overlap = kOverlap};
}

}  // namespace orrery

#include "kernels/attention/mla_decode/launch_work.h"

#include <algorithm>

#include "kernels/attention/mla_decode/split.h"
#include "kernels/launch_gpu.h"
#include "kernels/work.h"

namespace orrery {
namespace {

using launch::ceil_div;

constexpr std::int64_t kHeadsOfBlock = 64;               // more take two SMs, which share tiles
constexpr double kPeak = 0.6 * launch::kPeak;            // that the prior counts on
constexpr double kBandwidth = 0.8 * launch::kBandwidth;  // likewise

// us but for the rate, fitted to the 852 rows of mla_decode.csv of an H200 (graphs, cold), which
// their sum is off by 3.8 % in the median and 16 % at the 95th percentile: most where some more
// sequences than units are split. Of heads: of 64.
constexpr double kBegin = 7.83;
constexpr double kRate = 4.65e12;       // bytes/s, what the memory streams at
constexpr double kOverlap = 1.43;       // of tiles and bytes
constexpr double kTile = 0.645;         // of 64 tokens
constexpr double kTileHeads = 0.4;      // and for its heads
constexpr double kTileOfTwo = 1.45;     // where two SMs share it
constexpr double kPiece = 0.11;         // of a sequence: queries in, results out
constexpr double kPieceHeads = 3.28;    // and for its heads
constexpr double kSplit = 1.26;         // where results are merged
constexpr double kPart = 0.112;         // for each further part of a sequence
constexpr double kPartHeads = 0.016;    // and for its heads
constexpr double kSeveralParts = 1.16;  // where a unit has parts of several sequences

std::int64_t sms_of_unit(const MlaDecodeShape& shape) {
  return ceil_div(shape.heads, kHeadsOfBlock);
}

}  // namespace

MlaDecodeUnits mla_decode_units(const MlaDecodeShape& shape, int num_sms) {
  if (shape.sequences < 1 || shape.context < 1 || shape.heads < 1) return {};
  const std::int64_t units = num_sms / sms_of_unit(shape);
  const std::int64_t row = ceil_div(shape.context, kMlaTileTokens);
  const std::int64_t most = std::min(ceil_div(shape.sequences, units), shape.sequences);
  const MlaSplit split =
      mla_split(static_cast<int>(row * shape.sequences), static_cast<int>(row * most),
                static_cast<int>(shape.sequences), static_cast<int>(units));
  if (split.whole) return {.tiles = row * most, .pieces = most, .parts = 1};
  const std::int64_t quota = split.quota;
  // Units begin with a sequence where one divides the other, else anywhere within.
  const bool is_even = row % quota == 0 || quota % row == 0;
  const std::int64_t pieces =
      is_even ? std::max<std::int64_t>(quota / row, 1) : (row + quota - 2) / row + 1;
  return {.tiles = quota,
          .pieces = std::min(pieces, shape.sequences),
          .parts = ceil_div(row, quota) + (row % quota == 0 ? 0 : 1)};
}

LaunchWork mla_decode_launch(const MlaDecodeShape& shape, Flops flops, int num_sms) {
  const MlaDecodeUnits units = mla_decode_units(shape, num_sms);
  if (units.tiles == 0 || flops.value() <= 0) return {};
  const double heads = static_cast<double>(std::min(shape.heads, kHeadsOfBlock)) / kHeadsOfBlock;
  const double tile = sms_of_unit(shape) > 1 ? kTileOfTwo : kTile + kTileHeads * heads;
  const auto pieces = static_cast<double>(units.pieces);
  double beside = kBegin + pieces * (kPiece + kPieceHeads * heads);
  if (units.parts > 1) {
    beside += kSplit + static_cast<double>(units.parts - 1) * (kPart + kPartHeads * heads);
    if (units.pieces > 1) beside += kSeveralParts;
  }
  return {.computed = static_cast<double>(units.tiles) * tile * 1e-6 / (flops.value() / kPeak),
          .moved = kBandwidth / kRate,
          .beside = us(beside),
          .overlap = kOverlap};
}

}  // namespace orrery

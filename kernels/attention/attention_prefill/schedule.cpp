#include "kernels/attention/attention_prefill/schedule.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery {

KeyRange visible_keys(const PrefillTile& tile, std::int32_t window) {
  return {.first = std::max(0, tile.position - window + 1), .last = tile.keys};
}

namespace {

// Of each sequence one, without gaps.
std::vector<PrefillPiece> pieces_of(std::span<const PrefillChunk> sequences) {
  std::vector<PrefillPiece> pieces;
  std::int64_t query_row = 0;
  std::int64_t key_row = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t query = sequences[i].query;
    const std::int64_t context = sequences[i].context;
    if (query < 0 || context < 0) {
      throw std::invalid_argument("sequence " + std::to_string(i) + " has " +
                                  std::to_string(query) + " new tokens after " +
                                  std::to_string(context) + ", expected no negative length");
    }
    pieces.push_back({.query_row = query_row,
                      .query = query,
                      .position = context,
                      .key_row = key_row,
                      .sequence = static_cast<std::int64_t>(i)});
    query_row += query;
    key_row += query + context;
  }
  return pieces;
}

void add_tiles(const PrefillPiece& piece, std::int32_t tile_rows, std::vector<PrefillTile>& tiles) {
  if (piece.key_row + piece.position + piece.query > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument("more than 2^31 - 1 tokens in one prefill");
  }
  for (std::int64_t row = 0; row < piece.query; row += tile_rows) {
    const std::int64_t rows = std::min<std::int64_t>(tile_rows, piece.query - row);
    tiles.push_back({.query_row = static_cast<std::int32_t>(piece.query_row + row),
                     .rows = static_cast<std::int32_t>(rows),
                     .position = static_cast<std::int32_t>(piece.position + row),
                     .keys = static_cast<std::int32_t>(
                         std::min(piece.position + row + rows, piece.keys.value_or(kNoWindow))),
                     .key_row = static_cast<std::int32_t>(piece.key_row),
                     .sequence = static_cast<std::int32_t>(piece.sequence)});
  }
}

}  // namespace

std::vector<PrefillTile> prefill_tiles(std::span<const PrefillChunk> sequences,
                                       std::int32_t tile_rows, std::int32_t window) {
  return prefill_tiles(pieces_of(sequences), tile_rows, window);
}

std::vector<PrefillTile> prefill_tiles(std::span<const PrefillPiece> pieces, std::int32_t tile_rows,
                                       std::int32_t window) {
  if (window < 1) {
    throw std::invalid_argument("window is " + std::to_string(window) + ", expected at least 1");
  }
  std::vector<PrefillTile> tiles;
  for (const PrefillPiece& piece : pieces) add_tiles(piece, tile_rows, tiles);
  std::ranges::stable_sort(tiles, std::ranges::greater{}, [window](const PrefillTile& tile) {
    const KeyRange keys = visible_keys(tile, window);
    return keys.last - keys.first;
  });
  return tiles;
}

}  // namespace orrery

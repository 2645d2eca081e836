#pragma once

// How the tokens of a prefill are cut into tiles and in which order the tiles run.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/step_input.h"

namespace orrery {

inline constexpr std::int32_t kNoWindow = 1 << 30;  // every token sees all before it

// Query rows of one sequence that one thread block takes together, for each head.
struct PrefillTile {
  std::int32_t query_row = 0;  // of the first, among the new tokens of all sequences
  std::int32_t rows = 0;       // 1 .. rows of a tile
  std::int32_t position = 0;   // of the first in its sequence: context + offset among the new ones
  std::int32_t keys = 0;       // of its sequence, that its rows see at most
  std::int32_t key_row = 0;    // of the sequence's first key, among the keys of all sequences
  std::int32_t sequence = 0;
};

// Keys that the rows of `tile` see together: those at [first, last) of its sequence. A row sees
// those up to its own position.
struct KeyRange {
  std::int32_t first = 0;
  std::int32_t last = 0;
};
KeyRange visible_keys(const PrefillTile& tile, std::int32_t window);

// All tiles of at most `tile_rows` rows, those that see most keys first: blocks that take the next
// tile whenever they are free then end within one short tile of each other (longest processing time
// first; Graham, SIAM J. Appl. Math. 17(2), 1969). Keys and new tokens of the sequences follow each
// other without gaps. Throws std::invalid_argument for a negative length, a window below 1, or more
// tokens than an int32 counts.
std::vector<PrefillTile> prefill_tiles(std::span<const PrefillChunk> sequences,
                                       std::int32_t tile_rows, std::int32_t window);
// The same of pieces, wherever their rows and keys lie.
std::vector<PrefillTile> prefill_tiles(std::span<const PrefillPiece> pieces, std::int32_t tile_rows,
                                       std::int32_t window);

}  // namespace orrery

#pragma once

// How mla_decode deals the tiles of all sequences to its units of work (a block, or the two blocks
// that share a sequence of more than 64 heads). Written for host and device: each unit computes its
// own part from the lengths, which may change between replays of a graph.

#include <algorithm>
#include <cstdint>

#include "kernels/host_device.h"

namespace orrery {

inline constexpr int kMlaTileTokens = 64;
// A part of fewer tiles costs more to merge than it saves.
inline constexpr int kMlaMinTiles = 2;
// What splitting costs, in tiles: partial outputs written, read and merged.
inline constexpr int kMlaMergeTiles = 4;

ORRERY_HOST_DEVICE constexpr int mla_tiles(std::int32_t length) {
  return (length + kMlaTileTokens - 1) / kMlaTileTokens;
}

// So many units at most, on devices with more SMs too.
inline constexpr int kMlaMaxUnits = 256;

// Whole: unit u takes sequences [u quota, (u + 1) quota). Else all tiles lie in a row, sequence
// after sequence, and unit u takes tiles [u quota, (u + 1) quota) of it.
struct MlaSplit {
  bool whole = true;
  int quota = 1;
};

ORRERY_HOST_DEVICE constexpr int mla_sequences_per_unit(int sequences, int units) {
  return (sequences + units - 1) / units;
}

// Whole sequences unless the unit with most tiles would then work longer than equal parts and their
// merge take. `longest` is the largest number of tiles in mla_sequences_per_unit(sequences, units)
// sequences that one unit would take whole.
ORRERY_HOST_DEVICE constexpr MlaSplit mla_split(int total_tiles, int longest, int sequences,
                                                int units) {
  const int equal = (total_tiles + units - 1) / units;
  const int quota = equal < kMlaMinTiles ? kMlaMinTiles : equal;
  if (longest <= quota + kMlaMergeTiles) {
    return {.whole = true, .quota = mla_sequences_per_unit(sequences, units)};
  }
  return {.whole = false, .quota = quota};
}

// Tiles [begin, end) of one sequence, for one unit.
struct MlaPiece {
  int sequence = 0;
  int length = 0;  // tokens of the sequence
  int begin = 0;
  int end = 0;
  [[nodiscard]] ORRERY_HOST_DEVICE constexpr bool is_first() const { return begin == 0; }
  [[nodiscard]] ORRERY_HOST_DEVICE constexpr bool is_last() const {
    return end == mla_tiles(length);
  }
  [[nodiscard]] ORRERY_HOST_DEVICE constexpr bool is_whole() const {
    return is_first() && is_last();
  }
};

// The pieces of one unit in order; sequences of length zero have none. At most its first piece
// begins inside of a sequence and at most its last ends inside of one.
class MlaPieces {
 public:
  // `tiles` tiles from tile `tile` of sequence `sequence` on.
  ORRERY_HOST_DEVICE constexpr MlaPieces(const std::int32_t* lengths, int sequences, int sequence,
                                         int tile, int tiles)
      : lengths_(lengths), sequences_(sequences), sequence_(sequence), tile_(tile), left_(tiles) {
    load_length();
  }
  // False when there are no more.
  ORRERY_HOST_DEVICE constexpr bool next(MlaPiece& piece) {
    while (left_ > 0) {
      const int available = mla_tiles(length_) - tile_;
      const int taken = available < left_ ? available : left_;
      piece = {.sequence = sequence_, .length = length_, .begin = tile_, .end = tile_ + taken};
      left_ -= taken;
      tile_ = 0;
      ++sequence_;
      load_length();  // ahead of its use by one piece
      if (taken > 0) return true;
    }
    return false;
  }

 private:
  ORRERY_HOST_DEVICE constexpr void load_length() {
    length_ = left_ > 0 && sequence_ < sequences_ ? lengths_[sequence_] : 0;
  }

  const std::int32_t* lengths_;
  int sequences_;
  int sequence_;
  int tile_;
  int left_;
  int length_ = 0;
};

}  // namespace orrery

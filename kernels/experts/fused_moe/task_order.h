#pragma once

// In which order tiles of both layers of a rank's experts are computed: expert by expert the first
// layer, and behind so many tiles of other experts the second. No CUDA.
//
//   turn      0         1         2            3               own experts
//   tasks     first 0 | first 1 | first 2    | first 3       | second of all that are left
//                               | second 0   | second 1, 2   |

#include <cstdint>

#include "kernels/host_device.h"

namespace orrery::fused_moe {

// The last entry of table[0 .. count) that is at most `value`, where the first is and values
// repeat: of entries that are equal the last.
template <typename T>
ORRERY_HOST_DEVICE int last_at_most(const T* table, int count, int value) {
  int low = 0;
  while (count > 1) {
    const int half = count / 2;
    if (static_cast<int>(table[low + half]) <= value) low += half;
    count -= half;
  }
  return low;
}

// Tiles that lie between the layers of an expert: `halves` half rounds of the blocks.
ORRERY_HOST_DEVICE inline int least_tiles_between(int halves, int blocks, int first_columns) {
  return (halves * blocks + 2 * first_columns - 1) / (2 * first_columns);
}

// Experts up to `expert`, itself included, whose second layer has to wait when its first is done:
// fewer than `least` tiles lie behind theirs. At most 255. `tile_start`: where tiles of each expert
// of the rank begin, and behind the last.
template <typename T>
ORRERY_HOST_DEVICE int experts_waiting(const T* tile_start, int expert, int least) {
  const int last = static_cast<int>(tile_start[expert + 1]) - least;
  const int done =
      last < static_cast<int>(tile_start[0]) ? 0 : last_at_most(tile_start, expert + 2, last);
  constexpr int kMost = 255;
  const int waiting = expert + 1 - done;
  return waiting < kMost ? waiting : kMost;
}

// A tile of rows by a tile of columns.
struct TaskPlace {
  bool is_second = false;  // layer
  int expert = 0;
  int tile = 0;  // of rows, of the expert
  int column = 0;
};

class TaskOrder {
 public:
  // Of as many experts; tile_start [experts + 1], waiting [experts], which stay.
  ORRERY_HOST_DEVICE TaskOrder(const std::uint16_t* tile_start, const std::uint8_t* waiting,
                               int experts, int first_columns, int second_columns)
      : tile_start_(tile_start),
        waiting_(waiting),
        experts_(experts),
        first_columns_(first_columns),
        second_columns_(second_columns),
        count_(tiles_before(experts) * (first_columns + second_columns)) {}

  // False past the last one. In an expert tasks that share columns follow each other.
  ORRERY_HOST_DEVICE bool find(int index, TaskPlace& place) const {
    if (index >= count_) return false;
    int turn = 0;  // the last that begins at or before `index`
    for (int count = experts_ + 1; count > 1;) {
      const int half = count / 2;
      if (begin_of(turn + half) <= index) turn += half;
      count -= half;
    }
    int rest = index - begin_of(turn);
    place.expert = turn;
    place.is_second = false;
    const int firsts = tiles_of(turn) * first_columns_;
    if (rest >= firsts) {
      rest += tiles_before(done_before(turn)) * second_columns_ - firsts;
      place.expert = last_at_most(tile_start_, experts_, tile_start_[0] + rest / second_columns_);
      place.is_second = true;
      rest -= tiles_before(place.expert) * second_columns_;
    }
    const int tiles = tiles_of(place.expert);
    if (tiles == 0) return false;  // never: a turn of a task has tiles
    place.tile = rest % tiles;
    place.column = rest / tiles;
    return true;
  }

 private:
  ORRERY_HOST_DEVICE int tiles_before(int expert) const {
    return tile_start_[expert] - tile_start_[0];
  }
  ORRERY_HOST_DEVICE int tiles_of(int turn) const {
    return turn < experts_ ? tile_start_[turn + 1] - tile_start_[turn] : 0;
  }
  // Experts whose second layer comes before a turn.
  ORRERY_HOST_DEVICE int done_before(int turn) const {
    return turn == 0 ? 0 : turn - waiting_[turn - 1];
  }
  ORRERY_HOST_DEVICE int begin_of(int turn) const {
    return tiles_before(turn) * first_columns_ + tiles_before(done_before(turn)) * second_columns_;
  }

  const std::uint16_t* tile_start_;
  const std::uint8_t* waiting_;
  int experts_;
  int first_columns_;
  int second_columns_;
  int count_;
};

}  // namespace orrery::fused_moe

#pragma once

// How an axis of the whole is split over ranks: which of its elements each of them has. Passes say
// so of every axis that they cut, `verify` holds that all ranks together have the whole, `execute`
// finds a rank's part of a weight by it.
//
//   columns of gate and up over tp = 4            two parts, each dealt out by itself
//   | gate 0 | 1 | 2 | 3 | up 0 | 1 | 2 | 3 |     rank 1 has gate 1, then up 1
//
//   cached tokens over cp = 2, zig-zag            one part in 4 blocks, so that causal work is even
//   | 0 | 1 | 1 | 0 |                             rank 0 has the first block and the last
//
// A part is dealt out in blocks, in turn, over places 0, 1, ...; a place has its blocks one behind
// the other. Where a rank stands is a number in digits (Digit), so that one type says rank order,
// replicas (key heads with fewer heads than ranks) and grids of experts. What a place has less than
// the longest is padding at its end.

#include <array>
#include <cstdint>
#include <vector>

namespace orrery {

// A digit of a place, of 0 .. ways - 1: rank / stride % ways.
struct Digit {
  std::int32_t ways = 1;
  std::int32_t stride = 1;
  bool operator==(const Digit&) const = default;
};
// In place of a stride: the digit is the number of the tensor's micro-batch.
inline constexpr std::int32_t kOfMicroBatch = 0;

// Digits of a place, the most significant first; none: one place, so each rank has the whole part.
class Place {
 public:
  static constexpr int kMostDigits = 4;  // micro-batches, dp, cp, and tp inside them

  // Throws std::invalid_argument for one digit too many, ways < 1 or stride < 0. A digit of one way
  // is left out.
  Place& add(Digit digit);
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const Digit& digit(int i) const { return digits_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t num_places() const;
  [[nodiscard]] std::int64_t of(int rank, int micro_batch) const;
  // Of ranks that a pass has made out of `ways` each.
  [[nodiscard]] Place scaled(std::int32_t ways) const;
  bool operator==(const Place&) const = default;

 private:
  std::array<Digit, kMostDigits> digits_;
  int size_ = 0;
};

// A stretch of the axis that is dealt out by itself.
struct SplitPart {
  std::int64_t size = 0;   // of the whole
  std::int64_t block = 0;  // elements dealt out at a time; size / places or more: one block each
  Place place;
  bool is_zigzag = false;  // every second round goes from the last place to the first
  // Shares that are not even, such as tokens of data-parallel batches of their own: by place, where
  // its one share begins. Empty: blocks.
  std::vector<std::int64_t> starts;
  bool operator==(const SplitPart&) const = default;
};

// One behind the other, both in the whole and on each rank.
struct Split {
  std::vector<SplitPart> parts;
  bool operator==(const Split&) const = default;
};

// `count` elements from `local` on of what a rank has are those from `global` on of the whole.
struct AxisRange {
  std::int64_t local = 0;
  std::int64_t global = 0;
  std::int64_t count = 0;
  bool operator==(const AxisRange&) const = default;
};

std::int64_t whole_size(const Split& split);
// Elements on each rank, padding included.
std::int64_t local_size(const SplitPart& part);
std::int64_t local_size(const Split& split);
// What `rank` has for `micro_batch` (0 where there is one), by rising local; empty ranges are left
// out. 0 <= rank, micro_batch.
std::vector<AxisRange> ranges_of(const Split& split, int rank, int micro_batch = 0);
// Of one place of a part, in elements of that part.
std::vector<AxisRange> ranges_at(const SplitPart& part, std::int64_t place);

// One part in one place: what every rank has whole.
SplitPart whole_part(std::int64_t size);
// What each place of `part` has, divided once more over the places of `digits`: stretches of
// `share` (0: the least that hold it) from the front. Throws std::invalid_argument where a place
// has more than one stretch already.
SplitPart divided(const SplitPart& part, const Place& digits, std::int64_t share = 0);

// Throws std::invalid_argument saying what is wrong: no parts, negative sizes, blocks or starts
// that do not hold the part.
void check_split(const Split& split);

}  // namespace orrery

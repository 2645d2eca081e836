#include "sim/plan/split.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t num_blocks(const SplitPart& part) {
  return part.size == 0 ? 0 : ceil_div(part.size, part.block);
}

// The share of a place begins here; one behind the last place: the part's end.
std::int64_t start_of(const SplitPart& part, std::int64_t place) {
  return place < std::ssize(part.starts) ? part.starts[static_cast<std::size_t>(place)] : part.size;
}

}  // namespace

Place& Place::add(Digit digit) {
  if (digit.ways < 1 || digit.stride < 0) {
    throw std::invalid_argument("a digit of " + std::to_string(digit.ways) + " ways and stride " +
                                std::to_string(digit.stride) +
                                ", expected at least one way and no negative stride");
  }
  if (digit.ways == 1) return *this;
  if (size_ == kMostDigits) {
    throw std::invalid_argument("a place of more than " + std::to_string(kMostDigits) +
                                " digits, expected as many at most");
  }
  digits_[static_cast<std::size_t>(size_++)] = digit;
  return *this;
}

std::int64_t Place::num_places() const {
  std::int64_t places = 1;
  for (int i = 0; i < size_; ++i) places *= digit(i).ways;
  return places;
}

std::int64_t Place::of(int rank, int micro_batch) const {
  std::int64_t place = 0;
  for (int i = 0; i < size_; ++i) {
    const auto [ways, stride] = digit(i);
    place = place * ways + (stride == kOfMicroBatch ? micro_batch : rank / stride) % ways;
  }
  return place;
}

Place Place::scaled(std::int32_t ways) const {
  Place result = *this;
  for (Digit& digit : result.digits_) digit.stride *= ways;
  for (std::size_t i = static_cast<std::size_t>(size_); i < digits_.size(); ++i) {
    result.digits_[i] = {};
  }
  return result;
}

std::int64_t whole_size(const Split& split) {
  std::int64_t size = 0;
  for (const SplitPart& part : split.parts) size += part.size;
  return size;
}

std::int64_t local_size(const SplitPart& part) {
  if (part.starts.empty()) {
    return ceil_div(num_blocks(part), part.place.num_places()) * part.block;
  }
  std::int64_t most = 0;
  for (std::int64_t place = 0; place < std::ssize(part.starts); ++place) {
    most = std::max(most, start_of(part, place + 1) - start_of(part, place));
  }
  return std::max(most, part.block);
}

std::int64_t local_size(const Split& split) {
  std::int64_t size = 0;
  for (const SplitPart& part : split.parts) size += local_size(part);
  return size;
}

std::vector<AxisRange> ranges_at(const SplitPart& part, std::int64_t place) {
  std::vector<AxisRange> ranges;
  const auto add = [&](std::int64_t local, std::int64_t begin, std::int64_t end) {
    if (begin < end) ranges.push_back({.local = local, .global = begin, .count = end - begin});
  };
  if (!part.starts.empty()) {
    add(0, start_of(part, place), start_of(part, place + 1));
    return ranges;
  }
  const std::int64_t places = part.place.num_places();
  const std::int64_t rounds = ceil_div(num_blocks(part), places);
  for (std::int64_t round = 0; round < rounds; ++round) {
    const bool goes_back = part.is_zigzag && round % 2 == 1;
    const std::int64_t first =
        (round * places + (goes_back ? places - 1 - place : place)) * part.block;
    add(round * part.block, first, std::min(first + part.block, part.size));
  }
  return ranges;
}

std::vector<AxisRange> ranges_of(const Split& split, int rank, int micro_batch) {
  std::vector<AxisRange> ranges;
  std::int64_t local = 0;
  std::int64_t global = 0;
  for (const SplitPart& part : split.parts) {
    for (AxisRange range : ranges_at(part, part.place.of(rank, micro_batch))) {
      range.local += local;
      range.global += global;
      ranges.push_back(range);
    }
    local += local_size(part);
    global += part.size;
  }
  return ranges;
}

SplitPart whole_part(std::int64_t size) { return {.size = size, .block = size}; }

SplitPart divided(const SplitPart& part, const Place& digits, std::int64_t share) {
  SplitPart result = part;
  for (int i = 0; i < digits.size(); ++i) result.place.add(digits.digit(i));
  const std::int64_t ways = digits.num_places();
  const std::int64_t places = part.place.num_places();
  if (part.starts.empty() && num_blocks(part) > places) {
    throw std::invalid_argument("a part of " + std::to_string(num_blocks(part)) + " blocks on " +
                                std::to_string(places) +
                                " places, expected one block each where it is divided once more");
  }
  const std::int64_t held = local_size(part);
  result.block = std::max(share, ceil_div(held, ways));
  if (part.starts.empty() && (places == 1 || result.block * ways == held)) return result;
  result.starts.clear();
  for (std::int64_t place = 0; place < places; ++place) {
    const std::int64_t begin =
        part.starts.empty() ? std::min(place * part.block, part.size) : start_of(part, place);
    const std::int64_t end = part.starts.empty() ? std::min((place + 1) * part.block, part.size)
                                                 : start_of(part, place + 1);
    for (std::int64_t i = 0; i < ways; ++i) {
      result.starts.push_back(std::min(begin + i * result.block, end));
    }
  }
  return result;
}

void check_split(const Split& split) {
  const auto fail = [](const std::string& what) { throw std::invalid_argument("a split " + what); };
  if (split.parts.empty()) fail("has no parts, expected at least one");
  for (const SplitPart& part : split.parts) {
    if (part.size < 0 || part.block < 0 || (part.block == 0 && part.size > 0)) {
      fail("deals out " + std::to_string(part.size) + " elements in blocks of " +
           std::to_string(part.block) + ", expected no negative size, and blocks of at least one");
    }
    if (part.starts.empty()) continue;
    if (std::ssize(part.starts) != part.place.num_places() || part.starts.front() != 0 ||
        part.starts.back() > part.size || !std::ranges::is_sorted(part.starts)) {
      fail("of " + std::to_string(part.size) + " elements has " +
           std::to_string(part.starts.size()) + " starts, expected one for each of " +
           std::to_string(part.place.num_places()) + " places, rising from 0");
    }
  }
}

}  // namespace orrery

#include "sim/plan/halves.h"

#include <algorithm>
#include <numeric>

namespace orrery {
namespace {

// Of `count`, the most that one of so many has.
std::int64_t share_of(std::int64_t count, int ways) { return (count + ways - 1) / ways; }

}  // namespace

std::vector<ChunkPiece> halved_chunks(std::span<const std::int64_t> lengths, int dp) {
  std::vector<ChunkPiece> pieces;
  const auto each = static_cast<std::size_t>(share_of(std::ssize(lengths), dp));
  for (std::size_t begin = 0; begin < lengths.size(); begin += each) {
    const auto own = lengths.subspan(begin, std::min(each, lengths.size() - begin));
    const int part = kNumHalves * static_cast<int>(begin / each);
    std::int64_t left =
        share_of(std::accumulate(own.begin(), own.end(), std::int64_t{0}), kNumHalves);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const std::int64_t of_first = std::min(left, own[i]);
      left -= of_first;
      if (of_first > 0) pieces.push_back({.chunk = begin + i, .count = of_first, .part = part});
      if (of_first == own[i]) continue;
      pieces.push_back(
          {.chunk = begin + i, .first = of_first, .count = own[i] - of_first, .part = part + 1});
    }
  }
  return pieces;
}

std::vector<int> halved_decodes(std::int64_t num_decodes, int dp) {
  std::vector<int> parts;
  const std::int64_t each = share_of(num_decodes, dp);
  for (std::int64_t i = 0; i < num_decodes; ++i) {
    const std::int64_t rank = i / each;
    const std::int64_t own = std::min(each, num_decodes - rank * each);
    const bool is_second = i % each >= share_of(own, kNumHalves);
    parts.push_back(static_cast<int>(rank) * kNumHalves + (is_second ? 1 : 0));
  }
  return parts;
}

}  // namespace orrery

#pragma once

// Which sequences of a step are in which half of which data-parallel rank, where two halves overlap
// and are executed. Part 2 r + h is half h of rank r.
//
//   prompts of a rank   |  700  |  300  |     1000     |
//   its halves          |      first    |    second    |    two of 500 and 700: cut at 600

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

inline constexpr int kNumHalves = 2;

// Tokens [first, first + count) of chunk `chunk`, counted from the chunk's first.
struct ChunkPiece {
  std::size_t chunk = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  int part = 0;
  bool operator==(const ChunkPiece&) const = default;
};
// Chunks of these lengths, each at least 1, go to `dp` ranks whole and in order, as many to each.
// Where half of a rank's tokens (rounded up) end inside a chunk, it is cut. Pieces are in the order
// of the chunks.
std::vector<ChunkPiece> halved_chunks(std::span<const std::int64_t> lengths, int dp);
// The part of each decode, whole and in order likewise.
std::vector<int> halved_decodes(std::int64_t num_decodes, int dp);

}  // namespace orrery

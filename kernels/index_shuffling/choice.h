#pragma once

// What an index_shuffling call is, and how it is spread over the GPU. No CUDA.

#include <cstddef>
#include <cstdint>

namespace orrery {

// How a group of experts is judged against the others: by its best score (DeepSeek-V2), or by the
// sum of its two best (DeepSeek-V3).
enum class GroupScore : std::uint8_t { kBest, kBestTwo };

struct IndexShufflingShape {
  std::int64_t tokens = 0;         // may be 0
  std::int64_t experts_total = 1;  // 1 to 512
  std::int64_t topk = 1;           // 1 to 8
  std::int64_t groups = 1;         // of equal size, at most 32
  std::int64_t topk_groups = 1;    // groups whose experts may be chosen
  GroupScore group_score = GroupScore::kBest;
  std::int64_t first_expert = 0;  // rows are made for the experts first_expert ..
  std::int64_t experts = 1;       // .. first_expert + experts - 1
  bool normalises = false;        // weights of a token sum to `scale`
  double scale = 1;
};

inline constexpr std::int64_t kMostExperts = 512;
inline constexpr std::int64_t kMostTopK = 8;
inline constexpr std::int64_t kMostGroups = 32;

// Throws std::invalid_argument, naming the field, when one is out of range, topk experts are not in
// the groups that are kept, or tokens * topk does not fit in 31 bits.
void require_index_shuffling_shape(const IndexShufflingShape& shape);

// `clusters` clusters of `cluster` blocks, each of which takes `block_tokens` tokens in a row.
// Several clusters wait for each other, so all must run at once.
struct IndexShufflingTile {
  int threads = 1024;  // per block, a multiple of 32, at least as many as there are experts here
  int cluster = 1;     // 1, 2, 4, 8 or 16
  int clusters = 1;
  int block_tokens = 0;
  bool operator==(const IndexShufflingTile&) const = default;
};

// Lanes of a warp that share a token, and the vectors of four scores that each of them holds.
struct IndexShufflingLanes {
  int lanes = 32;  // 4, 8, 16 or 32
  int vectors = 1;
};
IndexShufflingLanes index_shuffling_lanes(const IndexShufflingShape& shape);

// Shared memory of a block, in bytes.
std::size_t index_shuffling_shared_bytes(const IndexShufflingShape& shape,
                                         const IndexShufflingTile& tile);

// The tile of a shape on a GPU that can run `most_blocks` blocks at once, in clusters of 8: a rule
// made from timings on an H200. Throws std::invalid_argument when there are more tokens than the
// shared memory of these blocks has room for.
IndexShufflingTile choose_index_shuffling(const IndexShufflingShape& shape, int most_blocks);

}  // namespace orrery

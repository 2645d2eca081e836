#pragma once

// What an index_shuffling call is, and how it is spread over the GPU. No CUDA.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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
  std::int64_t slots = 0;         // that hold experts and copies of them; 0: experts_total
  std::int64_t first_expert = 0;  // rows are made for the experts, or slots, first_expert ..
  std::int64_t experts = 1;       // .. first_expert + experts - 1
  bool normalises = false;        // weights of a token sum to `scale`
  double scale = 1;
};

inline constexpr std::int64_t kMostExperts = 512;
inline constexpr std::int64_t kMostExpertsPerToken = 8;
inline constexpr std::int64_t kMostGroups = 32;

// Which slots hold each expert: those of expert e are slots[first[e]] .. slots[first[e + 1] - 1].
// Token t of a launch goes to the one of these whose number is t modulo theirs.
struct ExpertSlots {
  std::vector<std::int32_t> first;  // [experts + 1]
  std::vector<std::int32_t> slots;
};
// Throws std::invalid_argument where an expert has no slot, or a slot holds none of them.
ExpertSlots expert_slots(std::span<const std::int32_t> expert_of_slot, std::int64_t num_experts);

// Throws std::invalid_argument, naming the field, when one is out of range, topk experts are not in
// the groups that are kept, or tokens * topk does not fit in 31 bits.
void require_index_shuffling_shape(const IndexShufflingShape& shape);

// `clusters` clusters of `cluster` blocks, each of which takes `block_tokens` tokens in a row.
// Several clusters wait for each other, so all must run at once. A token's scores are held by
// `lanes` threads, `vectors` times four scores each.
struct IndexShufflingTile {
  int threads = 1024;  // per block, a multiple of 32 up to 1024, at least the experts here
  int cluster = 1;     // 1, 2, 4, 8 or 16
  int clusters = 1;
  int block_tokens = 0;
  int lanes = 32;   // 4, 8, 16 or 32, at least topk; 32 with groups
  int vectors = 1;  // 1, 2 or 4
  bool operator==(const IndexShufflingTile&) const = default;
};

// Shared memory of a block, in bytes.
std::size_t index_shuffling_shared_bytes(const IndexShufflingShape& shape,
                                         const IndexShufflingTile& tile);

// The tile of a shape on a GPU that runs so many clusters of 1, 2, 4, 8 and 16 blocks at once, an
// SM for each block: a rule made from timings on an H200. With `free_sms` it finds room on a GPU of
// which others hold as many SMs, wherever they are: else blocks that wait for each other wait for
// them to end. Throws std::invalid_argument when there are more tokens than the shared memory of
// these blocks has room for.
IndexShufflingTile choose_index_shuffling(const IndexShufflingShape& shape,
                                          const std::array<int, 5>& most_clusters,
                                          int free_sms = 0);

}  // namespace orrery

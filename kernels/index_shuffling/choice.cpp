#include "kernels/index_shuffling/choice.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

constexpr int kWarp = 32;
constexpr int kVector = 4;
constexpr int kMostThreads = 1024;
constexpr int kCluster = 8;        // the largest that every GPU of the architecture takes
constexpr int kLargeCluster = 16;  // that one of sm_90 may take
constexpr std::size_t kMostSharedBytes = std::size_t{227} * 1024;

void require_range(const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument("index_shuffling: " + std::string(what) + " is " +
                                std::to_string(value) + ", expected " + std::to_string(least) +
                                " to " + std::to_string(most));
  }
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

IndexShufflingTile tile(const IndexShufflingShape& shape, int cluster, int clusters) {
  const IndexShufflingLanes lanes = index_shuffling_lanes(shape);
  const std::int64_t tokens = ceil_div(shape.tokens, std::int64_t{cluster} * clusters);
  const std::int64_t wanted = std::max(tokens * lanes.lanes, shape.experts);
  return {.threads = static_cast<int>(std::min<std::int64_t>(
              ceil_div(std::max<std::int64_t>(wanted, 1), kWarp) * kWarp, kMostThreads)),
          .cluster = cluster,
          .clusters = clusters,
          .block_tokens = static_cast<int>(tokens)};
}

}  // namespace

void require_index_shuffling_shape(const IndexShufflingShape& shape) {
  require_range("experts_total", shape.experts_total, 1, kMostExperts);
  require_range("topk", shape.topk, 1, std::min(kMostTopK, shape.experts_total));
  require_range("groups", shape.groups, 1, std::min(kMostGroups, shape.experts_total));
  require_range("topk_groups", shape.topk_groups, 1, shape.groups);
  if (shape.experts_total % shape.groups != 0) {
    throw std::invalid_argument("index_shuffling: " + std::to_string(shape.experts_total) +
                                " experts do not divide into " + std::to_string(shape.groups) +
                                " groups");
  }
  const std::int64_t kept = shape.experts_total / shape.groups * shape.topk_groups;
  if (shape.topk > kept) {
    throw std::invalid_argument("index_shuffling: topk is " + std::to_string(shape.topk) +
                                ", but the groups that are kept have " + std::to_string(kept) +
                                " experts");
  }
  require_range("first_expert", shape.first_expert, 0, shape.experts_total - 1);
  require_range("experts", shape.experts, 1, shape.experts_total - shape.first_expert);
  require_range("tokens", shape.tokens, 0, std::numeric_limits<std::int32_t>::max() / shape.topk);
}

IndexShufflingLanes index_shuffling_lanes(const IndexShufflingShape& shape) {
  const auto vectors = static_cast<std::uint64_t>(ceil_div(shape.experts_total, kVector));
  const auto wanted =
      std::max({std::bit_ceil(vectors), std::bit_ceil(static_cast<std::uint64_t>(shape.topk)),
                std::uint64_t{4}});
  const int lanes =
      shape.groups > 1 ? kWarp : static_cast<int>(std::min<std::uint64_t>(wanted, kWarp));
  return {.lanes = lanes,
          .vectors = static_cast<int>(std::bit_ceil(
              static_cast<std::uint64_t>(ceil_div(static_cast<std::int64_t>(vectors), lanes))))};
}

std::size_t index_shuffling_shared_bytes(const IndexShufflingShape& shape,
                                         const IndexShufflingTile& tile) {
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto words = static_cast<std::size_t>(ceil_div(tile.block_tokens, kWarp));
  const auto items =
      static_cast<std::size_t>(tile.block_tokens) * static_cast<std::size_t>(shape.topk);
  const std::size_t counts = static_cast<std::size_t>(tile.cluster) * experts;
  return sizeof(std::uint32_t) * (counts + words * experts + experts + kWarp + items) +
         sizeof(std::uint16_t) * (words * experts + items);
}

IndexShufflingTile choose_index_shuffling(const IndexShufflingShape& shape, int most_blocks) {
  const IndexShufflingLanes lanes = index_shuffling_lanes(shape);
  // Scores that a block looks at in one go.
  const std::int64_t at_once = kMostThreads / lanes.lanes;
  const std::int64_t blocks = ceil_div(shape.tokens, at_once);
  if (blocks <= kLargeCluster) {
    const auto cluster =
        std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(blocks, 1)));
    return tile(shape, static_cast<int>(cluster), 1);
  }
  const int most_clusters = std::max(most_blocks / kCluster, 1);
  const IndexShufflingTile chosen =
      tile(shape, kCluster,
           static_cast<int>(std::min<std::int64_t>(ceil_div(blocks, kCluster), most_clusters)));
  if (index_shuffling_shared_bytes(shape, chosen) > kMostSharedBytes) {
    throw std::invalid_argument("index_shuffling: " + std::to_string(shape.tokens) +
                                " tokens are more than " +
                                std::to_string(most_clusters * kCluster) + " blocks can hold");
  }
  return chosen;
}

}  // namespace orrery

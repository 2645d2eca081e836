#include "kernels/experts/index_shuffling/choice.h"

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
constexpr int kLeastLanes = 4;
constexpr int kMostVectors = 4;
constexpr std::int64_t kManyTokens = 8192;
constexpr std::size_t kOfEight = 3;  // in counts of clusters
constexpr int kCluster = 8;          // the largest that every GPU of the architecture takes
constexpr int kLargeCluster = 16;    // that one of sm_90 may take
constexpr std::size_t kMostSharedBytes = std::size_t{227} * 1024;

void require_range(const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw std::invalid_argument("index_shuffling: " + std::string(what) + " is " +
                                std::to_string(value) + ", expected " + std::to_string(least) +
                                " to " + std::to_string(most));
  }
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Lanes for a token: few, so that a warp has several tokens, where one is chosen or there are many
// tokens; else many, so that a lane has less to search. All of a warp where groups are judged.
IndexShufflingTile with_lanes(const IndexShufflingShape& shape, IndexShufflingTile tile) {
  const std::int64_t vectors = ceil_div(shape.experts_total, kVector);
  const std::int64_t held = shape.topk == 1 || shape.tokens > kManyTokens ? kMostVectors : 1;
  int lanes = shape.groups > 1 ? kWarp : kLeastLanes;
  while (lanes < kWarp && (lanes * held < vectors || lanes < shape.topk)) lanes *= 2;
  tile.lanes = lanes;
  tile.vectors = static_cast<int>(
      std::bit_ceil(static_cast<std::uint64_t>(ceil_div(vectors, std::int64_t{lanes}))));
  return tile;
}

// Throws unless a block's shared memory has room for its tokens.
IndexShufflingTile with_room(const IndexShufflingShape& shape, const IndexShufflingTile& tile) {
  if (index_shuffling_shared_bytes(shape, tile) > kMostSharedBytes) {
    throw std::invalid_argument(
        "index_shuffling: " + std::to_string(shape.tokens) + " tokens are more than " +
        std::to_string(tile.clusters * tile.cluster) + " blocks have room for");
  }
  return tile;
}

IndexShufflingTile with_blocks(const IndexShufflingShape& shape, IndexShufflingTile tile,
                               int cluster, int clusters) {
  const std::int64_t tokens = ceil_div(shape.tokens, std::int64_t{cluster} * clusters);
  const std::int64_t wanted = std::max({tokens * tile.lanes, shape.experts, std::int64_t{1}});
  tile.threads =
      static_cast<int>(std::min<std::int64_t>(ceil_div(wanted, kWarp) * kWarp, kMostThreads));
  tile.cluster = cluster;
  tile.clusters = clusters;
  tile.block_tokens = static_cast<int>(tokens);
  return tile;
}

// Clusters of eight blocks that run at once where others hold so many SMs. A cluster is in one GPC,
// which has 16 or 18 SMs (H100 architecture whitepaper: two to a TPC, up to nine TPCs): one held
// takes the room of one of its two clusters, nine that of both.
int clusters_beside(int most, int held_sms) {
  constexpr int kOfBoth = 9;
  return held_sms == 0 ? most : std::max(most / 2 - held_sms / kOfBoth, 1);
}

}  // namespace

ExpertSlots expert_slots(std::span<const std::int32_t> expert_of_slot, std::int64_t num_experts) {
  ExpertSlots result{.first = {0}};
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    for (std::size_t slot = 0; slot < expert_of_slot.size(); ++slot) {
      if (expert_of_slot[slot] == expert) result.slots.push_back(static_cast<std::int32_t>(slot));
    }
    result.first.push_back(static_cast<std::int32_t>(result.slots.size()));
    if (result.first.back() > result.first[result.first.size() - 2]) continue;
    throw std::invalid_argument("no slot holds expert " + std::to_string(expert));
  }
  if (result.slots.size() == expert_of_slot.size()) return result;
  throw std::invalid_argument("a slot holds none of " + std::to_string(num_experts) + " experts");
}

void require_index_shuffling_shape(const IndexShufflingShape& shape) {
  require_range("experts_total", shape.experts_total, 1, kMostExperts);
  require_range("topk", shape.topk, 1, std::min(kMostExpertsPerToken, shape.experts_total));
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
  if (shape.slots != 0) require_range("slots", shape.slots, shape.experts_total, kMostExperts);
  const std::int64_t slots = std::max(shape.slots, shape.experts_total);
  require_range("first_expert", shape.first_expert, 0, slots - 1);
  require_range("experts", shape.experts, 1, slots - shape.first_expert);
  require_range("tokens", shape.tokens, 0, std::numeric_limits<std::int32_t>::max() / shape.topk);
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

IndexShufflingTile choose_index_shuffling(const IndexShufflingShape& shape,
                                          const std::array<int, 5>& most_clusters, int free_sms) {
  const IndexShufflingTile lanes = with_lanes(shape, {});
  const std::int64_t warps = ceil_div(shape.tokens * lanes.lanes, kWarp);
  // Of one block; of a block of a cluster; of a cluster; of a block where there are several
  // clusters.
  constexpr std::int64_t kOneBlock = 8;
  constexpr std::int64_t kBlockWarps = 4;
  constexpr std::int64_t kMostClusterWarps = 512;
  constexpr std::int64_t kManyBlockWarps = 20;
  if (warps <= kOneBlock) return with_room(shape, with_blocks(shape, lanes, 1, 1));
  const int most_of_eight = clusters_beside(most_clusters[kOfEight], free_sms);
  if (warps <= kMostClusterWarps || most_of_eight < 2) {
    const int most = most_clusters.back() > 0 && free_sms == 0 ? kLargeCluster : kCluster;
    const auto blocks = static_cast<int>(std::min<std::uint64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(ceil_div(warps, kBlockWarps))), most));
    return with_room(shape, with_blocks(shape, lanes, blocks, 1));
  }
  const auto clusters = static_cast<int>(
      std::min<std::int64_t>(ceil_div(warps, kCluster * kManyBlockWarps), most_of_eight));
  const IndexShufflingTile tile = with_blocks(shape, lanes, kCluster, clusters);
  if (free_sms > 0 && index_shuffling_shared_bytes(shape, tile) > kMostSharedBytes) {
    return choose_index_shuffling(shape, most_clusters);  // it has to wait
  }
  return with_room(shape, tile);
}

}  // namespace orrery

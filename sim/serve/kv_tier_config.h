#pragma once

// Where KV blocks go that a GPU evicts, as a scenario says it, and what a service did with them.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

// When a tier is given blocks.
enum class TierWrite : std::uint8_t {
  kEviction,  // when whatever stands before it evicts them
  kThrough    // when they are computed
};
// Here and below, entry i names the enumerator of value i.
inline constexpr std::array<std::string_view, 2> kTierWriteNames{"eviction", "through"};

// Whether blocks that a tier holds are loaded.
enum class TierLoad : std::uint8_t {
  kAlways,
  kWhenFaster  // than computing them again is predicted to be (PrefillEstimate)
};
inline constexpr std::array<std::string_view, 2> kTierLoadNames{"always", "when_faster"};

// What of a step runs while blocks move.
enum class TierOverlap : std::uint8_t {
  kLayers,  // layer l, while those of layer l + 1 and beyond move
  kNone     // nothing: the step begins when all are there
};
inline constexpr std::array<std::string_view, 2> kTierOverlapNames{"layers", "none"};

struct KvTier {
  std::string name;
  Bytes capacity;  // of a replica; of a shared tier: of all replicas
  // From the tier to one GPU; of a shared tier: of the one link that all GPUs share.
  BytesPerSecond bandwidth;
  BytesPerSecond write_bandwidth;  // likewise, to the tier: the other direction
  Seconds latency;                 // until the first byte is there
  TierWrite write = TierWrite::kEviction;
  bool is_shared = false;  // one store, known to all replicas, in place of one for each
  bool operator==(const KvTier&) const = default;
};

// Time that a prompt's tokens take: of `query` of them after `context` others
// query * per_token + query * (context + query / 2) * per_pair.
struct PrefillEstimate {
  Seconds per_token;
  Seconds per_pair;
  [[nodiscard]] Seconds time(std::int64_t query, std::int64_t context) const {
    const auto tokens = static_cast<double>(query);
    return tokens * per_token + tokens * (static_cast<double>(context) + tokens / 2) * per_pair;
  }
};

// Layers of a step: those of all pipeline stages, and of one.
struct StepLayers {
  std::int64_t all = 1;
  std::int64_t of_stage = 1;
};

struct KvTiersConfig {
  std::vector<KvTier> tiers;  // nearest first; none: what is evicted is lost
  TierLoad load = TierLoad::kAlways;
  TierOverlap overlap = TierOverlap::kLayers;
  Bytes block_of_gpu;  // a KV block, on one GPU
  Bytes block;         // on all GPUs of a data-parallel rank
  StepLayers layers;
  PrefillEstimate prefill;  // TierLoad::kWhenFaster
};

// Units of the prefix cache that moved to and from one tier.
struct TierCounts {
  std::int64_t hit_tokens = 0;  // of prompts, at their first admission
  std::int64_t num_loaded = 0;
  std::int64_t num_written = 0;
  std::int64_t num_evicted = 0;
  bool operator==(const TierCounts&) const = default;
};
inline TierCounts sum(const TierCounts& a, const TierCounts& b) {
  return {.hit_tokens = a.hit_tokens + b.hit_tokens,
          .num_loaded = a.num_loaded + b.num_loaded,
          .num_written = a.num_written + b.num_written,
          .num_evicted = a.num_evicted + b.num_evicted};
}

struct TierMetrics {
  std::string name;
  std::int64_t hit_tokens = 0;
  Bytes loaded;  // over all GPUs
  Bytes written;
  Bytes evicted;
  Bytes held;  // at the end, of all replicas
  Bytes capacity;
};

// Of the steps that compute a token of a measured request.
struct KvTierMetrics {
  std::vector<TierMetrics> tiers;
  Seconds exposed;           // what steps took longer for blocks on their way, over all replicas
  double exposed_share = 0;  // of the time in steps
  std::int64_t recomputed_tokens = 0;  // in a tier, and predicted to be computed faster
};

}  // namespace orrery

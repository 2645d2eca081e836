#pragma once

// The tiers behind the KV blocks of one rank: what GPUs evict or compute is written to them, and a
// prompt whose prefix lies in one is loaded from there instead of computed.
//
//   GPU blocks ──evicted──► host ──evicted──► disk ──evicted──► (lost)      write: eviction
//    │   ▲ └────computed────────────────────► store                         write: through
//    │   └── loaded, from the nearest that has the unit; it stays there, as the one used last
//
// A step that loads takes as long as the slower of both makes it, layer by layer:
//
//   link      | wait, latency | layer 1 | layer 2 | layer 3 |
//   compute                             | layer 1 |  -      | ...       layer l waits for its
//   blocks
//
// and likewise where blocks of the GPU are overwritten that must have left before. Layers are taken
// to be alike in bytes and in time. Writes that no step waits for (through; of steps that only
// decode; between tiers) go in the background; a unit is found once it is written.
//
// Not thread safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/serve/kv_tier_config.h"
#include "sim/serve/kv_unit_events.h"
#include "sim/serve/prefix_holders.h"
#include "sim/serve/tier_store.h"

namespace orrery {

// Blocks on their way beside a step.
struct BlocksMoving {
  Seconds wait;  // from the step's begin until the first byte comes
  Seconds time;  // from then until the last one has
};

// By how much a step of `duration` takes longer for blocks that its layers wait for:
//   wait + max(time / l, time - duration (l - 1) / L),
// of L layers of which the first l are in the first stage of a pipeline: that either the first of
// them or the last waits longest follows from layers being alike.
Seconds exposed_time(const BlocksMoving& moving, Seconds duration, const StepLayers& layers,
                     TierOverlap overlap);

// A tier's store and links.
struct TierState {
  TierState(const KvTier& tier, std::int64_t capacity)
      : store(capacity), read(tier.bandwidth), write(tier.write_bandwidth) {}
  TierStore store;
  TierLink read;
  TierLink write;
};

// How many units of `blocks_per_unit` blocks each a tier has room for on one of `num_ranks` ranks.
std::int64_t tier_units(const KvTiersConfig& config, const KvTier& tier,
                        std::int64_t blocks_per_unit, int num_ranks);

// The shared tiers of a service; none stands where a tier is not shared.
class SharedTiers {
 public:
  SharedTiers() = default;
  SharedTiers(const KvTiersConfig& config, std::int64_t blocks_per_unit);
  [[nodiscard]] TierState* at(std::size_t tier) { return states_[tier].get(); }

 private:
  std::vector<std::unique_ptr<TierState>> states_;
};

class KvTiers {
 public:
  using UnitHash = TierStore::UnitHash;
  static constexpr int kOnGpu = -1;
  static constexpr int kNowhere = -2;

  // All outlive it. `num_ranks`: that share a replica's tiers evenly.
  KvTiers(const KvTiersConfig& config, std::int64_t blocks_per_unit, std::int64_t tokens_per_unit,
          int num_ranks, SharedTiers& shared);

  // As KvBlockManager::tell, of tiers of its own.
  void tell(PrefixHolders& holders, std::int32_t replica);
  // From now on tells `events`, which outlives it, of units that tiers read, get and lose.
  void tell(KvUnitEvents& events) { events_ = &events; }

  // What follows happens at `now`, not before anything else that did.
  void at(Seconds now) { now_ = now; }
  // The nearest tier that has a unit, or kNowhere.
  [[nodiscard]] int find(UnitHash hash) const;
  // Of a prompt of `target` tokens whose leading units are where `from` says: how many of them to
  // take. All of them, or fewer where computing those that stand in a tier is predicted faster.
  [[nodiscard]] std::int64_t num_worth_taking(std::span<const int> from, std::int64_t target) const;
  // So many tokens were found and are computed nevertheless.
  void recompute(std::int64_t tokens) { recomputed_tokens_ += tokens; }

  // A prompt uses these units, wherever they are; the first of them was used last.
  void touch(std::span<const UnitHash> hashes);
  // One of them comes from `tier`, for a prompt's first admission if it `is_hit`.
  void load(int tier, UnitHash hash, bool is_hit);
  // A unit is new on the GPU; and one is overwritten there.
  void published(UnitHash hash);
  void evicted(UnitHash hash);

  // The step in which that happened would take `duration`: by how much it takes longer.
  [[nodiscard]] Seconds exposed(Seconds duration) const;
  // What happens next is of another step.
  void end_step();

  // What moved since the last end_step().
  [[nodiscard]] std::span<const TierCounts> counts() const { return counts_; }
  [[nodiscard]] std::int64_t recomputed_tokens() const { return recomputed_tokens_; }

 private:
  // Units that a step waits for, on one link.
  struct Moving {
    Seconds begin;
    std::int64_t num_units = 0;
  };
  [[nodiscard]] Bytes unit_bytes(std::size_t tier) const;
  [[nodiscard]] TierState& state(std::size_t tier) const { return *states_[tier]; }
  // What stands before `tier` evicts a unit.
  void offer(std::size_t tier, UnitHash hash);
  void write(std::size_t tier, UnitHash hash);
  [[nodiscard]] Seconds exposed(const Moving& moving, std::size_t tier, const TierLink& link,
                                Seconds duration) const;

  const KvTiersConfig& config_;
  std::int64_t blocks_per_unit_;
  std::int64_t tokens_per_unit_;
  std::vector<std::unique_ptr<TierState>> own_;
  std::vector<TierState*> states_;  // own or shared, by tier
  std::vector<Moving> loads_;       // of the step, by tier
  Moving overwritten_;              // by the step, of units that tier 0 gets
  std::vector<TierCounts> counts_;
  std::int64_t recomputed_tokens_ = 0;
  Seconds now_;
  PrefixHolders* holders_ = nullptr;
  KvUnitEvents* events_ = nullptr;
  std::int32_t replica_ = 0;
};

}  // namespace orrery

#pragma once

// Paged KV memory of one replica. Blocks that only one request can use are counted, not listed, so
// that many decode steps can be taken at once; blocks of prompts with known content are kept in a
// prefix cache, shared by reference count and evicted least recently used first (as vLLM v1).
//
// The unit of the prefix cache is one hash block of the workload: `blocks_per_unit` KV blocks.
//
//   num_blocks = private (counted) + units in use + idle
//   idle, least recently used first: [never written] [unit] [12 blocks] [unit] ... <- given back
//
// Private blocks that are given back queue behind idle units as in vLLM's free list, so the output
// of finished requests pushes old prompts out.
//
// Not thread safe; one per replica.

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "sim/serve/kv_tiers.h"
#include "sim/serve/kv_unit_events.h"
#include "sim/serve/prefix_holders.h"

namespace orrery {

class KvBlockManager {
 public:
  using UnitHash = std::uint64_t;

  // blocks_per_unit 0: no prefix cache.
  KvBlockManager(std::int64_t num_blocks, std::int64_t blocks_per_unit);

  [[nodiscard]] std::int64_t num_blocks() const { return num_blocks_; }
  // Blocks that a request could get now; idle cached units count, as they can be evicted.
  [[nodiscard]] std::int64_t num_available() const { return num_blocks_ - num_used_; }
  // Blocks that requests hold (idle cached units do not count).
  [[nodiscard]] std::int64_t num_used() const { return num_used_; }

  // From now on tells `holders`, which outlives it, of units that `replica` gets and loses.
  void tell(PrefixHolders& holders, std::int32_t replica);
  // From now on tells `tiers`, which outlives it, of units that are new and of those evicted.
  void tell(KvTiers& tiers) { tiers_ = &tiers; }
  // From now on tells `events`, which outlives it, of units that it evicts, after `tiers`.
  void tell(KvUnitEvents& events) { events_ = &events; }
  [[nodiscard]] bool is_cached(UnitHash hash) const { return units_.contains(hash); }
  // Number of leading hashes that are cached.
  [[nodiscard]] std::int64_t num_cached_units(std::span<const UnitHash> hashes) const;
  // Of those, how many are idle: taking them makes that many units unavailable.
  [[nodiscard]] std::int64_t num_idle_units(std::span<const UnitHash> hashes) const;

  // Takes one more reference to each of the cached units `hashes`.
  void acquire_units(std::span<const UnitHash> hashes);
  // Gives back one reference; the units were acquired or published by the caller. Later units of
  // the prefix become idle first, so that they are evicted first.
  void release_units(std::span<const UnitHash> hashes);
  // Turns `blocks_per_unit` private blocks of the caller into a unit that it references; false, and
  // nothing changes, when that content is cached already.
  bool publish_unit(UnitHash hash);

  // Takes the blocks that are idle longest as private ones; cached units among them are evicted.
  // REQUIRES: count <= num_available().
  void allocate(std::int64_t count);
  void free(std::int64_t count);

 private:
  // One cached unit, or blocks without content that anyone could find.
  struct Idle {
    std::int64_t num_blocks = 0;
    bool is_unit = false;
    UnitHash hash = 0;
  };
  struct Unit {
    std::int64_t references = 0;
    std::list<Idle>::iterator idle;  // valid while references == 0
  };

  std::int64_t num_blocks_;
  std::int64_t blocks_per_unit_;
  std::int64_t num_used_ = 0;
  std::unordered_map<UnitHash, Unit> units_;  // never iterated: order would leak into results
  std::list<Idle> idle_;                      // empty when there is no prefix cache
  KvTiers* tiers_ = nullptr;
  KvUnitEvents* events_ = nullptr;
  PrefixHolders* holders_ = nullptr;
  std::int32_t replica_ = 0;
};

}  // namespace orrery

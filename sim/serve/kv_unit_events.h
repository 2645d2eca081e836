#pragma once

// What becomes of units of the prefix cache (kv_block_manager.h) and of the tiers behind it
// (kv_tiers.h), one by one, for a backend that has them in memory.
//
// Calls come in the order in which things happen while a step is formed, before its
// StepBackend::begin:
//
//   writes(unit), evicts(unit)            its blocks leave for a tier, and are free
//   reads(unit) ... receives(r, unit)     request r gets it from a tier
//   publishes(r, unit)                    request r computes it, in this step or the ones before
//   writes(unit), publishes(r, unit)      and it goes to a tier when that has ended
//   shares(r, unit, computes)             request r uses what is on the GPU
//
// `StepBackend::release` ends the use of all units of a request, which stay until they are evicted.

#include <cstdint>

namespace orrery {

class KvUnitEvents {
 public:
  using UnitHash = std::uint64_t;
  virtual ~KvUnitEvents() = default;

  // Of a request, whose next unit it is: the calls of a request come in the order of its prompt.
  // `computes`: it writes the unit's tokens once more, to the same blocks, as whoever published it.
  virtual void shares(std::int64_t request, UnitHash unit, bool computes) = 0;
  virtual void publishes(std::int64_t request, UnitHash unit) = 0;
  // Into blocks of the request, from where `reads` found it in this step.
  virtual void receives(std::int64_t request, UnitHash unit) = 0;
  // Of the GPU: no request uses it, and its blocks may be taken in the step that is formed.
  virtual void evicts(UnitHash unit) = 0;

  // Of a tier. What is read stays there until it is dropped, which may be before it is received.
  virtual void reads(int tier, UnitHash unit) = 0;
  // A unit that is evicted or published next.
  virtual void writes(int tier, UnitHash unit) = 0;
  virtual void drops(int tier, UnitHash unit) = 0;
};

}  // namespace orrery

#pragma once

// Units of the prefix cache that one tier holds, least recently used first, and the link to it.
//
// Not thread safe; of one rank, or of all that share the tier.

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

#include "sim/units/units.h"

namespace orrery {

class TierStore {
 public:
  using UnitHash = std::uint64_t;

  // Of at least one unit.
  explicit TierStore(std::int64_t capacity) : capacity_(capacity) {}

  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(units_.size()); }
  [[nodiscard]] bool has(UnitHash hash) const { return places_.contains(hash); }
  // Whether it is there and was written by `now`.
  [[nodiscard]] bool is_written(UnitHash hash, Seconds now) const;
  // A unit that it has is the one used last; nothing happens to others.
  void touch(UnitHash hash);
  // One more, used last, whose last byte comes at `written`. Returns what must go for it.
  // REQUIRES: !has(hash).
  std::optional<UnitHash> put(UnitHash hash, Seconds written);

 private:
  struct Unit {
    UnitHash hash = 0;
    Seconds written;
  };
  std::int64_t capacity_;
  std::list<Unit> units_;
  std::unordered_map<UnitHash, std::list<Unit>::iterator> places_;  // never iterated
};

// One direction of a link: what is sent goes in the order in which it was asked for.
class TierLink {
 public:
  explicit TierLink(BytesPerSecond rate) : rate_(rate) {}
  // When bytes that are asked for at `now` begin to move.
  [[nodiscard]] Seconds begin(Seconds now) const { return std::max(now, free_); }
  [[nodiscard]] Seconds time(Bytes bytes) const { return bytes / rate_; }
  // Sends `bytes` and returns when the last of them leaves.
  Seconds send(Seconds now, Bytes bytes) { return free_ = begin(now) + time(bytes); }

 private:
  BytesPerSecond rate_;
  Seconds free_;
};

}  // namespace orrery

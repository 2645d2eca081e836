#include "sim/serve/tier_store.h"

#include <cassert>

namespace orrery {

bool TierStore::is_written(UnitHash hash, Seconds now) const {
  const auto place = places_.find(hash);
  return place != places_.end() && place->second->written <= now;
}

void TierStore::touch(UnitHash hash) {
  const auto place = places_.find(hash);
  if (place != places_.end()) units_.splice(units_.end(), units_, place->second);
}

std::optional<TierStore::UnitHash> TierStore::put(UnitHash hash, Seconds written) {
  assert(!has(hash));
  std::optional<UnitHash> gone;
  if (size() == capacity_) {
    gone = units_.front().hash;
    places_.erase(*gone);
    units_.pop_front();
  }
  places_[hash] = units_.insert(units_.end(), {.hash = hash, .written = written});
  return gone;
}

}  // namespace orrery

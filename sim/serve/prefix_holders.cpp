#include "sim/serve/prefix_holders.h"

#include <algorithm>
#include <cassert>

namespace orrery {

void PrefixHolders::add(std::uint64_t hash, std::int32_t replica) {
  std::vector<std::int32_t>& holders = holders_[hash];
  holders.insert(std::ranges::lower_bound(holders, replica), replica);
}

void PrefixHolders::remove(std::uint64_t hash, std::int32_t replica) {
  const auto entry = holders_.find(hash);
  assert(entry != holders_.end());
  std::vector<std::int32_t>& holders = entry->second;
  holders.erase(std::ranges::lower_bound(holders, replica));
  if (holders.empty()) holders_.erase(entry);
}

void PrefixHolders::forget(std::int32_t replica) {
  for (auto& [hash, holders] : holders_) std::erase(holders, replica);
  std::erase_if(holders_, [](const auto& entry) { return entry.second.empty(); });
}

std::span<const std::int32_t> PrefixHolders::of(std::uint64_t hash) const {
  const auto entry = holders_.find(hash);
  return entry == holders_.end() ? std::span<const std::int32_t>() : std::span(entry->second);
}

}  // namespace orrery

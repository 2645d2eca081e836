#pragma once

// Which replicas hold which unit of a prompt in their prefix caches: a replica's KvBlockManager
// says so as units come and go.
//
// Not thread safe; one for all replicas behind a router.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace orrery {

class PrefixHolders {
 public:
  void add(std::uint64_t hash, std::int32_t replica);
  void remove(std::uint64_t hash, std::int32_t replica);
  // `replica` holds nothing any more.
  void forget(std::int32_t replica);
  // Ascending.
  [[nodiscard]] std::span<const std::int32_t> of(std::uint64_t hash) const;

 private:
  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> holders_;  // in no order
};

}  // namespace orrery

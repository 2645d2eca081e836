#pragma once

// Remembers the estimates of kernel calls. Thread safe; readers of one shard do not wait for each
// other. A shard that is full starts afresh, so memory is bounded and answers never change.

#include <array>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "sim/cost/cost.h"

namespace orrery {

class EstimateCache {
 public:
  [[nodiscard]] std::optional<Estimate> find(const KernelOp& op) const;
  void insert(const KernelOp& op, Estimate estimate);

 private:
  // Dims count by name and size; the axis they follow does not change the time.
  struct Hash {
    std::size_t operator()(const KernelOp& op) const;
  };
  struct Equal {
    bool operator()(const KernelOp& a, const KernelOp& b) const;
  };
  struct Shard {
    mutable std::shared_mutex mutex;
    std::unordered_map<KernelOp, Estimate, Hash, Equal> estimates;
  };

  static constexpr std::size_t kNumShards = 16;
  static constexpr std::size_t kMaxPerShard = 1 << 15;
  std::array<Shard, kNumShards> shards_;
};

}  // namespace orrery

#include "sim/cost/estimate_cache.h"

#include <mutex>

namespace orrery {

std::size_t EstimateCache::Hash::operator()(const KernelOp& op) const {
  // Kernel names differ in length or ends; equal hashes only cost a comparison.
  std::uint64_t hash = op.kernel.size() * 0x9E3779B97F4A7C15ULL;
  if (!op.kernel.empty()) {
    hash ^= static_cast<std::uint64_t>(static_cast<unsigned char>(op.kernel.front())) << 8 |
            static_cast<unsigned char>(op.kernel.back());
  }
  hash ^= static_cast<std::uint64_t>(op.dtype) << 20;
  hash ^= static_cast<std::uint64_t>(op.free_sms) << 32;
  for (const Dim& dim : op.dims) {
    hash = (hash ^ static_cast<std::uint64_t>(dim.size)) * 0xFF51AFD7ED558CCDULL;
    hash ^= hash >> 32;
  }
  return hash;
}

bool EstimateCache::Equal::operator()(const KernelOp& a, const KernelOp& b) const {
  if (a.dtype != b.dtype || a.free_sms != b.free_sms || a.dims.size() != b.dims.size() ||
      a.kernel != b.kernel) {
    return false;
  }
  for (std::size_t i = 0; i < a.dims.size(); ++i) {
    if (a.dims[i].size != b.dims[i].size || a.dims[i].name != b.dims[i].name) {
      return false;
    }
  }
  return true;
}

std::optional<Estimate> EstimateCache::find(const KernelOp& op) const {
  const Shard& shard = shards_[Hash()(op) >> 7 & (kNumShards - 1)];
  const std::shared_lock lock(shard.mutex);
  const auto found = shard.estimates.find(op);
  return found == shard.estimates.end() ? std::nullopt : std::optional(found->second);
}

void EstimateCache::insert(const KernelOp& op, Estimate estimate) {
  Shard& shard = shards_[Hash()(op) >> 7 & (kNumShards - 1)];
  const std::unique_lock lock(shard.mutex);
  if (shard.estimates.size() >= kMaxPerShard) {
    shard.estimates.clear();
  }
  shard.estimates.emplace(op, estimate);
}

}  // namespace orrery

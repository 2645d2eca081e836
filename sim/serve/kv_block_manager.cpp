#include "sim/serve/kv_block_manager.h"

#include <algorithm>
#include <cassert>

namespace orrery {

KvBlockManager::KvBlockManager(std::int64_t num_blocks, std::int64_t blocks_per_unit)
    : num_blocks_(num_blocks), blocks_per_unit_(blocks_per_unit) {
  if (blocks_per_unit_ > 0) idle_.push_back({.num_blocks = num_blocks});
}

void KvBlockManager::tell(PrefixHolders& holders, std::int32_t replica) {
  assert(units_.empty());
  holders_ = &holders;
  replica_ = replica;
}

std::int64_t KvBlockManager::num_cached_units(std::span<const UnitHash> hashes) const {
  std::int64_t count = 0;
  for (const UnitHash hash : hashes) {
    if (!units_.contains(hash)) break;
    ++count;
  }
  return count;
}

std::int64_t KvBlockManager::num_idle_units(std::span<const UnitHash> hashes) const {
  std::int64_t count = 0;
  for (const UnitHash hash : hashes) count += units_.at(hash).references == 0 ? 1 : 0;
  return count;
}

void KvBlockManager::acquire_units(std::span<const UnitHash> hashes) {
  for (const UnitHash hash : hashes) {
    Unit& unit = units_.at(hash);
    if (unit.references == 0) {
      idle_.erase(unit.idle);
      num_used_ += blocks_per_unit_;
    }
    ++unit.references;
  }
  assert(num_used_ <= num_blocks_);
}

void KvBlockManager::release_units(std::span<const UnitHash> hashes) {
  for (auto hash = hashes.rbegin(); hash != hashes.rend(); ++hash) {
    Unit& unit = units_.at(*hash);
    assert(unit.references > 0);
    if (--unit.references == 0) {
      unit.idle = idle_.insert(idle_.end(),
                               {.num_blocks = blocks_per_unit_, .is_unit = true, .hash = *hash});
      num_used_ -= blocks_per_unit_;
    }
  }
}

bool KvBlockManager::publish_unit(UnitHash hash) {
  const auto [unit, is_new] = units_.try_emplace(hash);
  if (!is_new) return false;
  unit->second.references = 1;  // its blocks stay in num_used_, now as a unit
  if (holders_ != nullptr) holders_->add(hash, replica_);
  if (tiers_ != nullptr) tiers_->published(hash);
  return true;
}

void KvBlockManager::allocate(std::int64_t count) {
  assert(count <= num_available());
  num_used_ += count;
  if (blocks_per_unit_ == 0) return;
  while (count > 0) {
    Idle& oldest = idle_.front();
    if (oldest.is_unit) {
      units_.erase(oldest.hash);
      if (holders_ != nullptr) holders_->remove(oldest.hash, replica_);
      if (tiers_ != nullptr) tiers_->evicted(oldest.hash);
      if (events_ != nullptr) events_->evicts(oldest.hash);
      oldest.is_unit = false;
    }
    const std::int64_t taken = std::min(count, oldest.num_blocks);
    oldest.num_blocks -= taken;
    count -= taken;
    if (oldest.num_blocks == 0) idle_.pop_front();
  }
}

void KvBlockManager::free(std::int64_t count) {
  num_used_ -= count;
  assert(num_used_ >= 0);
  if (blocks_per_unit_ == 0 || count == 0) return;
  if (idle_.empty() || idle_.back().is_unit) {
    idle_.push_back({.num_blocks = count});
  } else {
    idle_.back().num_blocks += count;
  }
}

}  // namespace orrery

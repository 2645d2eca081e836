#include "sim/serve/kv_tiers.h"

#include <algorithm>
#include <cassert>

namespace orrery {

Seconds exposed_time(const BlocksMoving& moving, Seconds duration, const StepLayers& layers,
                     TierOverlap overlap) {
  if (overlap == TierOverlap::kNone) return moving.wait + moving.time;
  const auto of_stage = static_cast<double>(layers.of_stage);
  const double hidden = (of_stage - 1) / static_cast<double>(layers.all);
  return moving.wait + std::max(moving.time / of_stage, moving.time - duration * hidden);
}

std::int64_t tier_units(const KvTiersConfig& config, const KvTier& tier,
                        std::int64_t blocks_per_unit, int num_ranks) {
  const Bytes unit = config.block * static_cast<double>(blocks_per_unit);
  return static_cast<std::int64_t>(tier.capacity / unit / (tier.is_shared ? 1 : num_ranks));
}

SharedTiers::SharedTiers(const KvTiersConfig& config, std::int64_t blocks_per_unit) {
  if (blocks_per_unit == 0) return;  // there is no prefix cache
  for (const KvTier& tier : config.tiers) {
    states_.push_back(tier.is_shared ? std::make_unique<TierState>(
                                           tier, tier_units(config, tier, blocks_per_unit, 1))
                                     : nullptr);
  }
}

KvTiers::KvTiers(const KvTiersConfig& config, std::int64_t blocks_per_unit,
                 std::int64_t tokens_per_unit, int num_ranks, SharedTiers& shared)
    : config_(config),
      blocks_per_unit_(blocks_per_unit),
      tokens_per_unit_(tokens_per_unit),
      loads_(config.tiers.size()),
      counts_(config.tiers.size()) {
  for (std::size_t i = 0; i < config.tiers.size(); ++i) {
    const KvTier& tier = config.tiers[i];
    if (!tier.is_shared) {
      own_.push_back(
          std::make_unique<TierState>(tier, tier_units(config, tier, blocks_per_unit, num_ranks)));
    }
    states_.push_back(tier.is_shared ? shared.at(i) : own_.back().get());
  }
}

void KvTiers::tell(PrefixHolders& holders, std::int32_t replica) {
  holders_ = &holders;
  replica_ = replica;
}

// One unit, as it crosses the tier's link.
Bytes KvTiers::unit_bytes(std::size_t tier) const {
  const Bytes block = config_.tiers[tier].is_shared ? config_.block : config_.block_of_gpu;
  return block * static_cast<double>(blocks_per_unit_);
}

int KvTiers::find(UnitHash hash) const {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (state(i).store.is_written(hash, now_)) return static_cast<int>(i);
  }
  return kNowhere;
}

std::int64_t KvTiers::num_worth_taking(std::span<const int> from, std::int64_t target) const {
  const auto all = std::ssize(from);
  if (config_.load == TierLoad::kAlways) return all;
  std::vector<Moving> loads = loads_;
  std::int64_t best = 0;
  Seconds fastest;
  const auto consider = [&](std::int64_t count) {
    const std::int64_t cached = count * tokens_per_unit_;
    const Seconds computed = config_.prefill.time(target - cached, cached);
    Seconds longest;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      longest = std::max(longest, exposed(loads[i], i, state(i).read, computed));
    }
    if (count > 0 && computed + longest > fastest) return;
    best = count;
    fastest = computed + longest;
  };
  consider(0);
  for (std::int64_t i = 0; i < all; ++i) {
    const int place = from[static_cast<std::size_t>(i)];
    if (place >= 0) {
      const auto tier = static_cast<std::size_t>(place);
      if (loads[tier].num_units++ == 0) loads[tier].begin = state(tier).read.begin(now_);
    }
    consider(i + 1);
  }
  return best;
}

void KvTiers::touch(std::span<const UnitHash> hashes) {
  for (TierState* const tier : states_) {
    for (auto hash = hashes.rbegin(); hash != hashes.rend(); ++hash) tier->store.touch(*hash);
  }
}

void KvTiers::load(int from, UnitHash hash, bool is_hit) {
  const auto tier = static_cast<std::size_t>(from);
  Moving& moving = loads_[tier];
  TierLink& link = state(tier).read;
  if (moving.num_units == 0) moving.begin = link.begin(now_);
  ++moving.num_units;
  link.send(now_, unit_bytes(tier));
  ++counts_[tier].num_loaded;
  if (is_hit) counts_[tier].hit_tokens += tokens_per_unit_;
  if (events_ != nullptr) events_->reads(from, hash);
}

void KvTiers::published(UnitHash hash) {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (config_.tiers[i].write != TierWrite::kThrough) continue;
    if (state(i).store.has(hash)) {
      state(i).store.touch(hash);
    } else {
      write(i, hash);
    }
  }
}

void KvTiers::evicted(UnitHash hash) {
  const std::int64_t before = counts_.front().num_written;
  const Seconds begin = state(0).write.begin(now_);
  offer(0, hash);
  if (counts_.front().num_written == before) return;
  if (overwritten_.num_units++ == 0) overwritten_.begin = begin;
}

// What a tier that is written through has lost went on to the next one when it did.
void KvTiers::offer(std::size_t tier, UnitHash hash) {
  if (tier == states_.size()) return;
  if (state(tier).store.has(hash)) {
    state(tier).store.touch(hash);
  } else if (config_.tiers[tier].write == TierWrite::kEviction) {
    write(tier, hash);
  }
}

void KvTiers::write(std::size_t tier, UnitHash hash) {
  TierState& to = state(tier);
  const bool is_own = !config_.tiers[tier].is_shared;
  const Seconds left = to.write.send(now_, unit_bytes(tier));
  const auto gone = to.store.put(hash, left + config_.tiers[tier].latency);
  ++counts_[tier].num_written;
  if (events_ != nullptr) {
    if (gone) events_->drops(static_cast<int>(tier), *gone);
    events_->writes(static_cast<int>(tier), hash);
  }
  if (holders_ != nullptr && is_own) holders_->add(hash, replica_);
  if (!gone) return;
  ++counts_[tier].num_evicted;
  if (holders_ != nullptr && is_own) holders_->remove(*gone, replica_);
  offer(tier + 1, *gone);
}

Seconds KvTiers::exposed(const Moving& moving, std::size_t tier, const TierLink& link,
                         Seconds duration) const {
  if (moving.num_units == 0) return Seconds(0);
  const Bytes bytes = unit_bytes(tier) * static_cast<double>(moving.num_units);
  return exposed_time(
      {.wait = moving.begin - now_ + config_.tiers[tier].latency, .time = link.time(bytes)},
      duration, config_.layers, config_.overlap);
}

Seconds KvTiers::exposed(Seconds duration) const {
  Seconds longest = exposed(overwritten_, 0, state(0).write, duration);
  for (std::size_t i = 0; i < loads_.size(); ++i) {
    longest = std::max(longest, exposed(loads_[i], i, state(i).read, duration));
  }
  return longest;
}

void KvTiers::end_step() {
  std::ranges::fill(loads_, Moving{});
  overwritten_ = {};
  std::ranges::fill(counts_, TierCounts{});
  recomputed_tokens_ = 0;
}

}  // namespace orrery

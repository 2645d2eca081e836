#include "kernels/serve/prefix_blocks.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {

FreeBlocks::FreeBlocks(std::int64_t num_blocks, std::int64_t frame) : frame_(frame) {
  free_in_.resize(static_cast<std::size_t>((num_blocks + frame - 1) / frame));
  for (std::int64_t block = 0; block < num_blocks; ++block) give(static_cast<std::int32_t>(block));
}

void FreeBlocks::give(std::int32_t block) {
  ++num_free_;
  loose_.insert(block);
  const std::size_t frame = frame_of(block);
  if (++free_in_[frame] < frame_) return;
  const auto first = static_cast<std::int32_t>(static_cast<std::int64_t>(frame) * frame_);
  loose_.erase(loose_.find(first), std::next(loose_.find(static_cast<std::int32_t>(
                                       first + static_cast<std::int32_t>(frame_) - 1))));
  whole_.push_back(first);
}

std::int32_t FreeBlocks::take() {
  if (num_free_ == 0) throw std::runtime_error("no KV blocks are left");
  if (loose_.empty()) {
    const std::int32_t first = whole_.front();
    whole_.pop_front();
    for (std::int64_t i = 0; i < frame_; ++i) {
      loose_.insert(loose_.end(), first + static_cast<std::int32_t>(i));
    }
  }
  const std::int32_t block = *loose_.begin();
  loose_.erase(loose_.begin());
  --free_in_[frame_of(block)];
  --num_free_;
  return block;
}

std::vector<std::int32_t> FreeBlocks::take_frame() {
  std::vector<std::int32_t> blocks;
  blocks.reserve(static_cast<std::size_t>(frame_));
  if (whole_.empty()) {
    for (std::int64_t i = 0; i < frame_; ++i) blocks.push_back(take());
    return blocks;
  }
  const std::int32_t first = whole_.front();
  whole_.pop_front();
  free_in_[frame_of(first)] = 0;
  num_free_ -= frame_;
  for (std::int64_t i = 0; i < frame_; ++i) {
    blocks.push_back(first + static_cast<std::int32_t>(i));
  }
  return blocks;
}

PrefixBlocks::PrefixBlocks(std::int64_t num_blocks, std::int64_t block_size,
                           std::int64_t blocks_per_unit, std::int64_t num_requests)
    : block_size_(block_size),
      blocks_per_unit_(std::max<std::int64_t>(blocks_per_unit, 1)),
      free_(std::max<std::int64_t>(num_blocks, 0), blocks_per_unit_),
      held_(static_cast<std::size_t>(num_requests)),
      read_by_(static_cast<std::size_t>(std::max<std::int64_t>(num_blocks, 0))) {
  if (num_blocks >= 1 && block_size >= 1 && blocks_per_unit >= 1) return;
  throw std::invalid_argument("a prefix cache of " + std::to_string(num_blocks) + " blocks of " +
                              std::to_string(block_size) + " tokens, " +
                              std::to_string(blocks_per_unit) +
                              " in a unit; expected at least 1 of each");
}

std::int32_t PrefixBlocks::taken(std::int32_t block) {
  std::int64_t& batch = read_by_[static_cast<std::size_t>(block)];
  moves_.overwrites = std::max(moves_.overwrites, std::exchange(batch, 0));
  return block;
}

std::span<const std::int32_t> PrefixBlocks::cover(std::int64_t request, std::int64_t tokens) {
  std::vector<std::int32_t>& blocks = held_by(request).blocks;
  const auto needed = static_cast<std::size_t>((tokens + block_size_ - 1) / block_size_);
  while (blocks.size() < needed) blocks.push_back(taken(free_.take()));
  return blocks;
}

void PrefixBlocks::release(std::int64_t request) {
  Held& held = held_by(request);
  const auto own =
      std::span(held.blocks).subspan(static_cast<std::size_t>(held.num_units * blocks_per_unit_));
  for (const std::int32_t block : own) free_.give(block);
  held = {};
}

std::span<const std::int32_t> PrefixBlocks::held(std::int64_t request) const {
  return held_[static_cast<std::size_t>(request)].blocks;
}

KvMoves PrefixBlocks::take_moves() {
  moves_.num_slots = std::ssize(written_by_);
  // Of a batch of which all was dropped nothing is waited for.
  const bool has_writes = !moves_.writes.empty();
  moves_.overwrites = std::min(moves_.overwrites, num_batches_ + (has_writes ? 1 : 0));
  if (has_writes || !moves_.computed.empty()) moves_.batch = ++num_batches_;
  free_slots_.insert(free_slots_.end(), given_up_.begin(), given_up_.end());
  given_up_.clear();
  reading_.clear();
  read_slots_.clear();
  return std::exchange(moves_, {});
}

void PrefixBlocks::shares(std::int64_t request, UnitHash unit, bool computes) {
  Held& held = held_by(request);
  const std::vector<std::int32_t>& shared = on_gpu_.at(unit);
  // What the request computed of it before is dropped.
  const auto first = held.blocks.begin() + held.num_units * blocks_per_unit_;
  for (auto own = first; own != held.blocks.end(); ++own) free_.give(*own);
  held.blocks.erase(first, held.blocks.end());
  held.blocks.insert(held.blocks.end(), shared.begin(), shared.end());
  ++held.num_units;
  if (!computes) return;
  for (const std::int32_t block : shared) taken(block);
}

const std::vector<std::int32_t>& PrefixBlocks::own_unit(std::int64_t request, UnitHash unit) {
  Held& held = held_by(request);
  const std::int64_t first = held.num_units * blocks_per_unit_;
  if (std::ssize(held.blocks) == first) {
    for (const std::int32_t block : free_.take_frame()) held.blocks.push_back(taken(block));
  } else {
    cover(request, (first + blocks_per_unit_) * block_size_);
  }
  ++held.num_units;
  const auto blocks = held.blocks.begin() + first;
  return on_gpu_[unit] = {blocks, blocks + blocks_per_unit_};
}

void PrefixBlocks::publishes(std::int64_t request, UnitHash unit) {
  const std::vector<std::int32_t>& blocks = own_unit(request, unit);
  if (unpublished_.erase(unit) == 0) return;
  moves_.computed.push_back({.blocks = blocks, .slot = slots_.at(unit)});
  mark_written(moves_.computed.back());
}

void PrefixBlocks::receives(std::int64_t request, UnitHash unit) {
  const std::int64_t slot = reading_.at(unit);
  moves_.loads_after = std::max(moves_.loads_after, written_by_[static_cast<std::size_t>(slot)]);
  publishes(request, unit);
  moves_.loads.push_back({.blocks = on_gpu_.at(unit), .slot = slot});
}

void PrefixBlocks::evicts(UnitHash unit) {
  const auto found = on_gpu_.find(unit);
  for (const std::int32_t block : found->second) free_.give(block);
  on_gpu_.erase(found);
}

void PrefixBlocks::reads(int /*tier*/, UnitHash unit) {
  reading_[unit] = slots_.at(unit);
  read_slots_.insert(slots_.at(unit));
}

std::int64_t PrefixBlocks::free_slot() {
  if (free_slots_.empty()) {
    written_by_.push_back(0);
    return std::ssize(written_by_) - 1;
  }
  const std::int64_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void PrefixBlocks::mark_written(const UnitMove& move) {
  const std::int64_t batch = num_batches_ + 1;
  written_by_[static_cast<std::size_t>(move.slot)] = batch;
  for (const std::int32_t block : move.blocks) read_by_[static_cast<std::size_t>(block)] = batch;
}

void PrefixBlocks::writes(int /*tier*/, UnitHash unit) {
  const std::int64_t slot = free_slot();
  slots_[unit] = slot;
  const auto found = on_gpu_.find(unit);
  if (found == on_gpu_.end()) {
    unpublished_.insert(unit);
    return;
  }
  moves_.writes.push_back({.blocks = found->second, .slot = slot});
  mark_written(moves_.writes.back());
}

void PrefixBlocks::drops(int /*tier*/, UnitHash unit) {
  const auto found = slots_.find(unit);
  const std::int64_t slot = found->second;
  slots_.erase(found);
  unpublished_.erase(unit);
  // What was to be written in this step is not: copies of a batch may pass each other.
  const auto goes_there = [slot](const UnitMove& move) { return move.slot == slot; };
  std::erase_if(moves_.writes, goes_there);
  std::erase_if(moves_.computed, goes_there);
  (read_slots_.contains(slot) ? given_up_ : free_slots_).push_back(slot);
}

}  // namespace orrery

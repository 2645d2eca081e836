#include "sim/serve/decode_batch.h"

#include <algorithm>
#include <cassert>

namespace orrery {
namespace {

std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return (a % b + b) % b; }

}  // namespace

DecodeBatch::DecodeBatch(std::int64_t block_size)
    : block_size_(block_size), residues_(static_cast<std::size_t>(block_size), 0) {}

std::int64_t DecodeBatch::blocks(std::int64_t num_steps) const {
  // A sequence takes a block in the step that begins with its position a multiple of the block
  // size: once in each block_size steps, in the step given by its residue.
  std::int64_t blocks = num_steps / block_size_ * num_sequences_;
  for (std::int64_t i = 0; i < num_steps % block_size_; ++i) {
    blocks += residues_[static_cast<std::size_t>(floor_mod(-(step_ + i), block_size_))];
  }
  return blocks;
}

std::int64_t DecodeBatch::steps_before_full(std::int64_t available, std::int64_t limit) const {
  if (num_sequences_ == 0) return limit;
  const std::int64_t cycles = available / num_sequences_;
  if (cycles >= limit / block_size_ + 1) return limit;
  available -= cycles * num_sequences_;
  std::int64_t steps = cycles * block_size_;
  while (steps < limit) {
    available -= residues_[static_cast<std::size_t>(floor_mod(-(step_ + steps), block_size_))];
    if (available < 0) break;
    ++steps;
  }
  return std::min(steps, limit);
}

std::int64_t& DecodeBatch::residue(std::int64_t position) {
  return residues_[static_cast<std::size_t>(floor_mod(position - step_, block_size_))];
}

void DecodeBatch::join(std::int64_t position, const Finish& finish) {
  ++num_sequences_;
  positions_ += position;
  finish_steps_ += finish.step;
  ++residue(position);
  finishes_.insert(finish);
}

void DecodeBatch::leave(std::int64_t position, const Finish& finish) {
  --num_sequences_;
  positions_ -= position;
  finish_steps_ -= finish.step;
  --residue(position);
  finishes_.erase(finish);
}

void DecodeBatch::advance(std::int64_t num_steps) {
  assert(num_sequences_ == 0 || num_steps <= steps_to_finish());
  step_ += num_steps;
  positions_ += num_steps * num_sequences_;
}

std::optional<std::int64_t> DecodeBatch::finished() const {
  if (finishes_.empty() || finishes_.begin()->step > step_) return std::nullopt;
  return finishes_.begin()->slot;
}

}  // namespace orrery

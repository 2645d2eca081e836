#pragma once

// The sequences of one replica that decode. Each makes one token a step, so positions, the KV
// blocks to come and the steps at which sequences finish are kept as offsets to a step counter: any
// number of steps costs the same, whatever the batch.
//
// Not thread safe.

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace orrery {

class DecodeBatch {
 public:
  // When a sequence has made its last token: before `step`. Ties go by order of admission.
  struct Finish {
    std::int64_t step = 0;
    std::int64_t order = 0;
    std::int64_t slot = 0;
    auto operator<=>(const Finish&) const = default;
  };

  explicit DecodeBatch(std::int64_t block_size);

  [[nodiscard]] std::int64_t size() const { return num_sequences_; }
  // Steps taken so far.
  [[nodiscard]] std::int64_t step() const { return step_; }
  // Sum over sequences of the tokens in the KV cache before the next step.
  [[nodiscard]] std::int64_t positions() const { return positions_; }
  // Sum over sequences of the tokens that they are still to make.
  [[nodiscard]] std::int64_t tokens_left() const { return finish_steps_ - num_sequences_ * step_; }
  // KV blocks that the next `num_steps` steps take.
  [[nodiscard]] std::int64_t blocks(std::int64_t num_steps) const;
  // Most steps that `available` blocks are enough for, at most `limit`.
  [[nodiscard]] std::int64_t steps_before_full(std::int64_t available, std::int64_t limit) const;
  // REQUIRES: size() > 0.
  [[nodiscard]] std::int64_t steps_to_finish() const { return finishes_.begin()->step - step_; }

  // A sequence with `position` tokens in the KV cache.
  void join(std::int64_t position, const Finish& finish);
  // `position` as of now, `finish` as it joined.
  void leave(std::int64_t position, const Finish& finish);
  // At most steps_to_finish() steps.
  void advance(std::int64_t num_steps);
  // Slot of a sequence that has made its last token and has not left yet, in order.
  [[nodiscard]] std::optional<std::int64_t> finished() const;

 private:
  [[nodiscard]] std::int64_t& residue(std::int64_t position);

  std::int64_t block_size_;
  std::int64_t step_ = 0;
  std::int64_t num_sequences_ = 0;
  std::int64_t positions_ = 0;
  std::int64_t finish_steps_ = 0;       // sum
  std::vector<std::int64_t> residues_;  // sequences by (position - step) mod block_size
  std::set<Finish> finishes_;
};

}  // namespace orrery

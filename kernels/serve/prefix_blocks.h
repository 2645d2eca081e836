#pragma once

// Which KV blocks requests and cached units have, and where units are on the host: the identities
// behind KvBlockManager and one tier of KvTiers, told by them what happens.
//
//   GPU     [unit a][unit b][. . . .][unit c][p p . .][p . . .]     frames of a unit's blocks; p:
//   of
//                                                                   one request alone
//   host    [unit d][unit a][      ][unit e]                        slots of a unit
//
// A unit gets a whole frame while one is free, so that it moves in few large copies. Slots are made
// as they are needed: one that is read in a step is not written to in the same step, so there may
// be some more than the tier has units.
//
// Not thread safe.

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/serve/kv_moves.h"
#include "sim/serve/kv_unit_events.h"

namespace orrery {

// Blocks that nobody has, by frames of `frame` neighbours.
class FreeBlocks {
 public:
  FreeBlocks(std::int64_t num_blocks, std::int64_t frame);
  // Throw std::runtime_error where there are too few: one block, the lowest of frames that are not
  // whole; as many as a frame has, a whole one if there is any.
  std::int32_t take();
  std::vector<std::int32_t> take_frame();
  void give(std::int32_t block);
  [[nodiscard]] std::int64_t size() const { return num_free_; }

 private:
  [[nodiscard]] std::size_t frame_of(std::int32_t block) const {
    return static_cast<std::size_t>(block / frame_);
  }

  std::int64_t frame_;
  std::int64_t num_free_ = 0;
  std::vector<std::int64_t> free_in_;  // by frame; the last may have fewer blocks
  std::deque<std::int32_t> whole_;     // first blocks of whole frames, free longest first
  std::set<std::int32_t> loose_;       // blocks of other frames
};

class PrefixBlocks : public KvUnitEvents {
 public:
  // Of `num_requests` requests. Throws std::invalid_argument for sizes below 1.
  PrefixBlocks(std::int64_t num_blocks, std::int64_t block_size, std::int64_t blocks_per_unit,
               std::int64_t num_requests);

  // As KvBlocks.
  std::span<const std::int32_t> cover(std::int64_t request, std::int64_t tokens);
  void release(std::int64_t request);
  [[nodiscard]] std::span<const std::int32_t> held(std::int64_t request) const;
  [[nodiscard]] std::int64_t num_free() const { return free_.size(); }
  // What moves for the step whose blocks have been covered; what happens next is of another.
  KvMoves take_moves();

  void shares(std::int64_t request, UnitHash unit, bool computes) override;
  void publishes(std::int64_t request, UnitHash unit) override;
  void receives(std::int64_t request, UnitHash unit) override;
  void evicts(UnitHash unit) override;
  void reads(int tier, UnitHash unit) override;
  void writes(int tier, UnitHash unit) override;
  void drops(int tier, UnitHash unit) override;

 private:
  struct Held {
    std::vector<std::int32_t> blocks;  // those of units first
    std::int64_t num_units = 0;
  };
  [[nodiscard]] Held& held_by(std::int64_t request) {
    return held_[static_cast<std::size_t>(request)];
  }
  // The next unit of a request, in blocks of its own.
  const std::vector<std::int32_t>& own_unit(std::int64_t request, UnitHash unit);
  // The step takes a block, perhaps while it is still read.
  std::int32_t taken(std::int32_t block);
  std::int64_t free_slot();
  void mark_written(const UnitMove& move);

  std::int64_t block_size_;
  std::int64_t blocks_per_unit_;
  FreeBlocks free_;
  std::vector<Held> held_;                                          // by request
  std::unordered_map<UnitHash, std::vector<std::int32_t>> on_gpu_;  // never iterated
  std::vector<std::int64_t> read_by_;                               // by block: a batch, or 0
  std::unordered_map<UnitHash, std::int64_t> slots_;                // never iterated
  std::vector<std::int64_t> written_by_;                            // by slot: a batch, or 0
  std::vector<std::int64_t> free_slots_;
  std::int64_t num_batches_ = 0;
  // Of the step that is formed.
  KvMoves moves_;
  std::unordered_map<UnitHash, std::int64_t> reading_;  // slots; never iterated
  std::set<std::int64_t> read_slots_;                   // of `reading_`
  std::vector<std::int64_t> given_up_;                  // of these, free when the step has ended
  std::set<UnitHash> unpublished_;                      // that go to a slot when published
};

}  // namespace orrery

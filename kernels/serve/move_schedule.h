#pragma once

// In which order copies of KV blocks and a step's layers are enqueued, and what waits for what. No
// CUDA: lanes are streams (kernels/serve/host_tier.h), or something else in tests.
//
//   out       [layer 0 of what leaves][1][2]..                  [what was computed]
//   in            [layer 0 of what comes][1][2]..                     ^
//   compute            [layer 0      ][1      ][2      ] ...   [end]──┘
//
// A layer of `in` waits for the same layer of `out`, whose blocks it may fill; a layer of the step
// for both. Without overlap all layers are one.
//
// Not thread safe; of one rank.

#include <cstdint>
#include <span>

#include "kernels/serve/kv_moves.h"
#include "sim/serve/kv_tier_config.h"

namespace orrery {

enum class MoveLane : std::uint8_t { kCompute, kOut, kIn };

// Something that lanes come to.
struct MoveMark {
  enum class Kind : std::uint8_t {
    kOut,    // layers from `number` on of a step's writes
    kIn,     // and of its loads
    kEnd,    // of a step's layers
    kBatch,  // all of batch `number`, and of those before
  };
  Kind kind = Kind::kOut;
  std::int64_t number = 0;
  auto operator<=>(const MoveMark&) const = default;
};

class MoveLanes {
 public:
  virtual ~MoveLanes() = default;
  // To the host on lane kOut, from it on kIn; `num_layers` of each unit from `layer` on.
  virtual void copy(MoveLane lane, std::span<const UnitMove> units, std::int64_t layer,
                    std::int64_t num_layers) = 0;
  virtual void record(MoveLane lane, const MoveMark& mark) = 0;
  // For what was recorded before.
  virtual void wait(MoveLane lane, const MoveMark& mark) = 0;
};

class MoveSchedule {
 public:
  // `lanes` outlives it.
  MoveSchedule(MoveLanes& lanes, std::int64_t num_layers, TierOverlap overlap)
      : lanes_(lanes), num_layers_(num_layers), overlap_(overlap) {}

  // The next step has these, which live until its end.
  void set(const KvMoves& moves) { moves_ = &moves; }
  // Before anything of the step is enqueued; `by_layers`: begin_layer is going to be called, as it
  // is not for a captured step.
  void begin_step(bool by_layers);
  // Before the first of layer `layer` that uses its KV blocks: for each, ascending.
  void begin_layer(std::int64_t layer);
  // When all of the step is enqueued; what follows has nothing to move.
  void end_step();

 private:
  void enqueue(std::int64_t layer, std::int64_t num_layers);
  void wait_for_batches(MoveLane lane, std::int64_t batch);
  [[nodiscard]] bool overwrites_own() const {
    return !moves_->writes.empty() && moves_->overwrites == moves_->batch;
  }

  MoveLanes& lanes_;
  std::int64_t num_layers_;
  TierOverlap overlap_;
  const KvMoves* moves_ = nullptr;
  std::int64_t next_layer_ = 0;  // of those that are not enqueued
};

}  // namespace orrery

#pragma once

// The host's memory as a tier behind the KV blocks of one replica: page-locked, of each rank on its
// own, with a stream each way beside those of its steps, so that both copy engines work at once.
//
//   GPU     pools [2 l, 2 l + 1] of layer l: [block][block].. each     (kernels/binding/kv_pool.h)
//   host    slot of a unit: [pool 0: its blocks][pool 1: its blocks] .. [pool 2 L - 1: its blocks]
//
// A unit's blocks are neighbours on the GPU where PrefixBlocks had a whole frame, and always in
// their slot, so a layer of it is two copies of the unit's keys and values (1 MiB each of 512
// tokens of Llama-3.1-8B in BF16) rather than two of each block. Copies of a layer go as one batch
// that is enqueued when the layer is: the host is ahead of the GPU by much more than it takes.
//
// Used by one thread for the step, and by each rank's thread in it.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/execute/kv_hook.h"
#include "kernels/serve/kv_moves.h"
#include "sim/serve/kv_tier_config.h"
#include "sim/units/units.h"

namespace orrery {

struct HostTierConfig {
  std::int64_t num_slots = 0;  // that are allocated ahead; more are when a step needs them
  std::int64_t blocks_per_unit = 0;
  TierOverlap overlap = TierOverlap::kLayers;
};

class HostTier : public KvHook {
 public:
  explicit HostTier(HostTierConfig config);
  ~HostTier() override;
  // The caches of the ranks, on devices by rank, all of which outlive it. Allocates; throws
  // std::runtime_error that says how much where the host has too little memory to lock, otherwise
  // cuda::Error.
  void open(std::span<const KvPool* const> pools, std::span<const int> devices);

  // The next step has these moves.
  void set(const KvMoves& moves);
  // How long the last step waited for them, on the rank that waited longest: by events on its
  // streams, from when a layer might have begun until its blocks had moved, over all layers.
  [[nodiscard]] Seconds waited() const;

  void begin_step(int rank, const cuda::Stream& main, bool by_layers) override;
  void begin_layer(int rank, std::int64_t layer, const cuda::Stream& stream) override;
  void end_step(int rank, const cuda::Stream& main) override;

 private:
  class Lanes;  // of one rank

  HostTierConfig config_;
  KvMoves moves_;
  std::int64_t step_ = 0;  // that has them; counted from 1
  std::vector<std::unique_ptr<Lanes>> ranks_;
};

}  // namespace orrery

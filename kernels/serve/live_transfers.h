#pragma once

// KV caches that move between replicas while they compute: each pair of data-parallel ranks, one of
// a prefill replica and one of a decode replica, has a thread, on which its transfers follow each
// other.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "kernels/serve/executed_steps.h"
#include "kernels/serve/live_clock.h"
#include "kernels/serve/live_loop.h"
#include "sim/serve/transfer.h"
#include "sim/units/units.h"

namespace orrery {

// Moves KV blocks between instances: GPUs (kernels/serve/kv_mover.h), or something else in tests.
class KvMover {
 public:
  // Of one request. Ranks are the data-parallel ones of all replicas of a side, in order.
  struct Move {
    int prefill = 0;
    int decode = 0;
    std::span<const std::int32_t> source;
    std::span<const std::int32_t> destination;  // as many blocks
    // Above 0: each layer moves once it is computed in the prefill replica's step of that number,
    // counted from 1 since serving began, which may be yet to begin.
    std::int64_t step = 0;
  };

  virtual ~KvMover() = default;
  // Copies block source[i] of the prefill rank to block destination[i] of the decode rank, on all
  // GPUs and layers, and waits; how long it took on the device. Called by one thread for each pair.
  virtual Seconds move(const Move& move) = 0;
};

// Under the lock of its LiveLoop.
class LiveTransfers : public Transfers {
 public:
  // All outlive it; all replicas of a side have as many ranks. Pairs [prefill, decode] of ranks
  // have the threads of `live` from `first_thread` on.
  LiveTransfers(LiveLoop& live, std::size_t first_thread, const LiveClock& clock, KvMover& mover,
                std::span<const Request> requests, std::span<ExecutedSteps* const> prefill,
                std::span<ExecutedSteps* const> decode);

  // The decode replica has blocks for the tokens of the prompt from now on.
  void submit(Seconds now, std::int64_t idx, int prefill, int decode, Bytes bytes,
              const Layers& layers) override;
  [[nodiscard]] std::optional<Seconds> next_event() const override;
  // A transfer ends when the host sees it, and the first token is made; it started what it took on
  // the device before. The decode replica then has the request's tokens.
  void advance(Seconds now, std::vector<Ended>& ended) override;

 private:
  void move(std::int64_t idx, const KvMover::Move& move);
  // The lock is given up until then, or until the run stops.
  void wait_for_first_token(std::int64_t idx, int prefill);
  [[nodiscard]] ExecutedSteps& replica_of(std::span<ExecutedSteps* const> side, int rank) const {
    const auto ranks = static_cast<std::size_t>(side.front()->num_dp_ranks());
    return *side[static_cast<std::size_t>(rank) / ranks];
  }

  LiveLoop& live_;
  std::size_t first_thread_;
  const LiveClock& clock_;
  KvMover& mover_;
  std::span<const Request> requests_;
  std::span<ExecutedSteps* const> prefill_;
  std::span<ExecutedSteps* const> decode_;
  std::deque<Ended> ended_;  // not told yet, in order
};

}  // namespace orrery

#pragma once

// KV caches that move between replicas while they compute: each pair of replicas has a thread, on
// which its transfers follow each other.

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
  virtual ~KvMover() = default;
  // Copies block source[i] of prefill replica `prefill` to block destination[i] of decode replica
  // `decode`, on all ranks and layers, and waits; how long it took on the device. Called by one
  // thread for each pair of replicas.
  virtual Seconds move(int prefill, int decode, std::span<const std::int32_t> source,
                       std::span<const std::int32_t> destination) = 0;
};

// Under the lock of its LiveLoop.
class LiveTransfers : public Transfers {
 public:
  // All outlive it. Pairs [prefill, decode] have the threads of `live` from `first_thread` on.
  LiveTransfers(LiveLoop& live, std::size_t first_thread, const LiveClock& clock, KvMover& mover,
                std::span<const Request> requests, std::span<ExecutedSteps* const> prefill,
                std::span<ExecutedSteps* const> decode);

  // The decode replica takes the request over: its tokens, and blocks for those of the prompt.
  void submit(Seconds now, std::int64_t idx, int prefill, int decode, Bytes bytes,
              const Layers& layers) override;
  [[nodiscard]] std::optional<Seconds> next_event() const override;
  // A transfer ends when the host sees it; it started what it took on the device before.
  void advance(Seconds now, std::vector<Ended>& ended) override;

 private:
  void move(std::int64_t idx, int prefill, int decode, std::span<const std::int32_t> source,
            std::span<const std::int32_t> destination);

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

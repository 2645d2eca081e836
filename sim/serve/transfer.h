#pragma once

// KV caches on their way from prefill to decode replicas: what a service asks of them, how long a
// transfer takes alone, and how transfers share the ports of replicas.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

// Whoever sends or receives is a data-parallel rank: those of all prefill replicas are numbered one
// replica after the other, and so are those of all decode replicas.
class Transfers {
 public:
  struct Ended {
    std::int64_t idx = 0;
    int prefill = 0;
    int decode = 0;
    Seconds start;
    Seconds end;
  };

  // A KV cache whose layers come one by one: the first is there at `first`, the last one, so much
  // of its bytes, at `last` (kNever: when their step has ended). As it stands all are there.
  struct Layers {
    Seconds first;
    Seconds last;
    double last_part = 0;
  };

  virtual ~Transfers() = default;
  // Request `idx`'s `bytes` (of the GPU that moves most) may move from `now` on.
  virtual void submit(Seconds now, std::int64_t idx, int prefill, int decode, Bytes bytes,
                      const Layers& layers) = 0;
  // When the next transfer ends, as far as that is known.
  [[nodiscard]] virtual std::optional<Seconds> next_event() const = 0;
  // Appends the transfers that end at `now`, the time of next_event().
  virtual void advance(Seconds now, std::vector<Ended>& ended) = 0;
};

struct TransferPoint {
  Bytes bytes;
  Seconds time;
};

// Time of one transfer that has its ports to itself. All GPUs of a data-parallel rank send at once,
// so bytes are those of one of them.
struct TransferTime {
  Seconds start;        // from when blocks may move until they do; the pair's ports count as taken
  Seconds latency;      // in all cases
  BytesPerSecond rate;  // where `points` is empty
  // Measured, ascending: linear between points, below the first one its time, above the last one at
  // the rate from the point before it.
  std::vector<TransferPoint> points;
  double beside_steps = 1;  // time of a transfer while both sides compute, of that by `points`
};
// Without `start`.
Seconds transfer_time(const TransferTime& time, Bytes bytes);

// From one rank of a prefill replica to one of a decode replica.
struct TransferLink {
  int fabric = 0;  // pairs share the ports of a rank on one fabric (NVLink, NIC)
  TransferTime time;
  // What a transfer at full speed takes of the ports of either rank's busiest GPU: 1 of the side
  // that limits it, less of one whose GPUs are more and send or receive less each.
  double leaving = 1;
  double entering = 1;
};

// Transfers of one pair follow each other in the order in which they were submitted. Those of
// different pairs run at once; where they leave by one port or enter by one they share it max-min
// fairly (in speed, of that alone), each at most as fast as alone. One whose layers come slower
// than they move leaves its ports to the next and ends when its last layer has moved. Not thread
// safe.
class TransferQueue : public Transfers {
 public:
  // `links`: [prefill ranks, decode ranks]; they outlive the queue.
  TransferQueue(std::span<const TransferLink> links, int num_decode);

  void submit(Seconds now, std::int64_t idx, int prefill, int decode, Bytes bytes,
              const Layers& layers) override;
  [[nodiscard]] std::optional<Seconds> next_event() const override;
  // By pair, then those that waited for their last layer.
  void advance(Seconds now, std::vector<Ended>& ended) override;

 private:
  struct Waiting {
    std::int64_t idx = 0;
    Seconds start;  // TransferTime::start
    Seconds alone;
    Seconds first;      // Layers::first
    Seconds least_end;  // when the last layer has moved, alone
  };
  struct Pair {
    std::deque<Waiting> waiting;  // the first of them moves
    Seconds start;                // of the first
    Seconds since;                // from when `left` counts
    Seconds left;                 // of its start and time alone
    double share = 1;
    [[nodiscard]] Seconds end() const { return since + left / share; }
  };

  void begin(Seconds now, Pair& pair);
  // New shares from `now` on.
  void share_out(Seconds now);

  std::span<const TransferLink> links_;
  int num_decode_;
  std::map<std::size_t, Pair> moving_;      // those with transfers, by index into links_
  std::multimap<Seconds, Ended> settling_;  // by end: those that wait for their last layer
};

}  // namespace orrery

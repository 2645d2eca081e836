#pragma once

// Two machines whose GPUs one plan takes together, GPUs of one kind each: those of the first come
// first. Between them each GPU has a way out and one in of its own, apart from what joins the GPUs
// of its machine:
//
//   0 .. num_front - 1   GPUs of `front`   --up/down--  (ideal crossbar)  --up/down--   GPUs of
//   `behind`

#include <optional>

#include "sim/machine/machine.h"
#include "sim/machine/machine_link.h"

namespace orrery {

struct JoinedMachines {
  Machine front;
  Machine behind;
  int num_front = 0;       // GPUs of `front` that are taken, the first ones
  NetworkLink from_front;  // what a GPU of each sends to the other machine, or gets
  NetworkLink from_behind;
  bool is_rate_given = false;  // else the rates are those of networks, of which calls get a share
};

// `front` with its first `num_front` GPUs, `behind` them those of the other. What `link` does not
// say of the link between them is that of the network of each, and the longer of their latencies.
// Throws std::invalid_argument where no rate is known of one of them.
Machine join_machines(const Machine& front, int num_front, const Machine& behind,
                      std::optional<BytesPerSecond> rate, std::optional<Seconds> latency);

}  // namespace orrery

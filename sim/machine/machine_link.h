#pragma once

// The link between two machines, as far as their networks say it.

#include <optional>

#include "sim/machine/machine.h"
#include "sim/units/units.h"

namespace orrery {

// What one GPU sends to one of another node.
struct NetworkLink {
  BytesPerSecond rate;
  Seconds latency;
};

// Between nodes next to each other of a machine like `machine`; none where its topology has no
// network, as a single node.
std::optional<NetworkLink> network_of(const MachineSpec& machine);

// Between a GPU of `from` and one of `to`, as if their networks were one: the lower rate, the
// longer latency. None where either has no network.
std::optional<NetworkLink> link_between(const MachineSpec& from, const MachineSpec& to);

// The longer latency of their networks, 0 where neither has one.
Seconds network_latency(const MachineSpec& from, const MachineSpec& to);

}  // namespace orrery

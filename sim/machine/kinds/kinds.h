#pragma once

// The table entries of the topology kinds, one per file in this directory.

#include "sim/machine/machine.h"

namespace orrery::kinds {

extern const TopologyKind kSingleGpu;
extern const TopologyKind kNvswitchNode;
extern const TopologyKind kPcieNode;
extern const TopologyKind kRailFatTree;
extern const TopologyKind kNvl72;

// up(from) then down(to) on the fabric that carries the pair; empty when from == to.
Route composed_route(const TopologyKind& kind, const Machine& machine, int from, int to);

}  // namespace orrery::kinds

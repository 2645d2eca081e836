#pragma once

// NVLink domains joined by rail-optimised NICs under a two-level fat tree: what rail_fat_tree and
// nvl72 share. Link indices are arithmetic, so a port needs no search:
//
//   one domain:    gpu g: nvlink up 2g, down 2g+1
//   more domains:  gpu g: nvlink up 4g, down 4g+1, nic up 4g+2, nic down 4g+3;
//                  leaf l: to spine 4n + 2l, from spine 4n + 2l + 1       (n GPUs)
//
// Leaf l = pod * rails + rail, pod = node / nodes_per_leaf, rail = gpu % gpus_per_node.
// Latencies stand on the up links, so that a route's sum counts each hop once.

#include "sim/machine/machine.h"

namespace orrery::kinds {

// Fabrics in the order of TopologyKind::fabric.
inline constexpr int kNvlinkFabric = 0;
inline constexpr int kLeafFabric = 1;   // same rail, same pod: nic up, leaf, nic down
inline constexpr int kSpineFabric = 2;  // everything else: nic up, leaf, spine, leaf, nic down

// Throws std::invalid_argument that names `field` unless the rate is positive and finite.
void require_rate(const MachineSpec& spec, BytesPerSecond rate, const char* field,
                  const char* needed_for);
void build_rails(Machine& machine, int domain_size);
int rails_fabric(const Machine& machine, int domain_size, int from, int to);
Port rails_port(const Machine& machine, int domain_size, int fabric, int gpu);

}  // namespace orrery::kinds

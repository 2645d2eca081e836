// rail_fat_tree: NVSwitch nodes with one NIC per GPU, rail-optimised leaves, ideal spine.
//
//                      spine (ideal crossbar)
//                 /        |            |        \            trunk per leaf and direction:
//             leaf 0     leaf 1   ...  leaf 8    leaf 9 ...    nodes_per_leaf * nic_rate
//             rail 0     rail 1        rail 0    rail 1        / spine_oversubscription
//              |  \       |  \           |         |
//     node 0: nic0 | ... nic1 |        (node nodes_per_leaf and on: next pod of leaves)
//              |   |      |   |
//            [GPU0]|    [GPU1]|  ...   GPUs of a node also meet on an NVSwitch
//     node 1:     nic0       nic1
//
// NIC i of every node of a pod (nodes_per_leaf nodes) is on the pod's leaf i. Same node: NVSwitch.
// Same rail and pod: through the leaf. Everything else, cross-rail included, goes through the
// spine; forwarding over NVLink to the right rail first (PXN) is not modelled. Uses every field of
// MachineSpec; NIC fields only when there is more than one node.

#include "sim/machine/kinds/kinds.h"
#include "sim/machine/kinds/rails.h"

namespace orrery::kinds {
namespace {

void build(Machine& machine) { build_rails(machine, machine.spec.gpus_per_node); }

Route route(const Machine& machine, int from, int to) {
  return composed_route(kRailFatTree, machine, from, to);
}

}  // namespace

const TopologyKind kRailFatTree = {
    .name = "rail_fat_tree",
    .summary = "NVSwitch nodes, a NIC per GPU, rail-optimised leaves under a spine",
    .build = build,
    .route = route,
    .nvlink_domain_size = [](const MachineSpec& spec) { return spec.gpus_per_node; },
    .fabric = [](const Machine& machine, int from,
                 int to) { return rails_fabric(machine, machine.spec.gpus_per_node, from, to); },
    .port = [](const Machine& machine, int fabric,
               int gpu) { return rails_port(machine, machine.spec.gpus_per_node, fabric, gpu); },
    .num_fabrics =
        [](const MachineSpec& spec) { return spec.num_gpus > spec.gpus_per_node ? 3 : 1; },
};

}  // namespace orrery::kinds

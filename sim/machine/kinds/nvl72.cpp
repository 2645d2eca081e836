// nvl72: racks of 72 GPUs in one NVLink domain; racks meet over NICs on rails under a fat tree.
//
//     rack 0                                      rack 1
//     +--------- NVLink switches ---------+       +-- NVLink switches --+
//      | ^   | ^               | ^                 | ^
//      v |   v |               v |                 v |
//     [GPU 0][GPU 1] ...     [GPU 71]             [GPU 72] ...
//      nic    nic              nic                 nic
//       \______\________________\___________________\____ rail leaves, spine (as rail_fat_tree)
//
// gpus_per_node is the GPUs of a compute tray (4); NIC i of each tray is on rail i, nodes_per_leaf
// counts trays. NIC fields are used only when there is more than one rack. Routes between racks are
// those of rail_fat_tree: same rail and pod through the leaf, else through the spine.

#include "sim/machine/kinds/kinds.h"
#include "sim/machine/kinds/rails.h"

namespace orrery::kinds {
namespace {

constexpr int kDomainSize = 72;

void build(Machine& machine) { build_rails(machine, kDomainSize); }

Route route(const Machine& machine, int from, int to) {
  return composed_route(kNvl72, machine, from, to);
}

}  // namespace

const TopologyKind kNvl72 = {
    .name = "nvl72",
    .summary = "racks of 72 GPUs in one NVLink domain, joined by rail NICs",
    .build = build,
    .route = route,
    .nvlink_domain_size = [](const MachineSpec&) { return kDomainSize; },
    .fabric = [](const Machine& machine, int from,
                 int to) { return rails_fabric(machine, kDomainSize, from, to); },
    .port = [](const Machine& machine, int fabric,
               int gpu) { return rails_port(machine, kDomainSize, fabric, gpu); },
    .num_fabrics = [](const MachineSpec& spec) { return spec.num_gpus > kDomainSize ? 3 : 1; },
};

}  // namespace orrery::kinds

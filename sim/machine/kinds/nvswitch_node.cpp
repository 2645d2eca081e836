// nvswitch_node: the GPUs of one node around a non-blocking NVSwitch.
//
//        +------------- NVSwitch -------------+
//        |  ^       |  ^              |  ^
//    down|  |up     |  |              |  |      one link per direction and GPU, nvlink_rate each
//        v  |       v  |              v  |
//      [GPU 0]    [GPU 1]    ...    [GPU n-1]
//
// Uses nvlink_rate and nvlink_latency; NIC, leaf and spine fields are ignored. num_gpus is 1 to 16,
// all in one NVLink domain (gpus_per_node at least num_gpus).

#include <stdexcept>
#include <string>

#include "sim/machine/kinds/kinds.h"
#include "sim/machine/kinds/rails.h"

namespace orrery::kinds {
namespace {

constexpr int kMaxGpus = 16;  // HGX-2, the largest NVSwitch node

void build(Machine& machine) {
  const MachineSpec& spec = machine.spec;
  if (spec.num_gpus > kMaxGpus || spec.num_gpus > spec.gpus_per_node) {
    throw std::invalid_argument(
        "machine '" + spec.name + "': num_gpus is " + std::to_string(spec.num_gpus) +
        "; kind nvswitch_node is one node of gpus_per_node = " +
        std::to_string(spec.gpus_per_node) + " (at most " + std::to_string(kMaxGpus) +
        "); use kind rail_fat_tree for several nodes");
  }
  build_rails(machine, spec.num_gpus);
}

Route route(const Machine& machine, int from, int to) {
  return composed_route(kNvswitchNode, machine, from, to);
}

}  // namespace

const TopologyKind kNvswitchNode = {
    .name = "nvswitch_node",
    .summary = "one node, each GPU on a non-blocking NVSwitch",
    .build = build,
    .route = route,
    .nvlink_domain_size = [](const MachineSpec& spec) { return spec.num_gpus; },
    .fabric = [](const Machine&, int, int) { return kNvlinkFabric; },
    .port = [](const Machine& machine, int fabric,
               int gpu) { return rails_port(machine, machine.num_gpus(), fabric, gpu); },
    .num_fabrics = [](const MachineSpec&) { return 1; },
};

}  // namespace orrery::kinds

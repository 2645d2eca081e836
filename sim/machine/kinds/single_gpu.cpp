// single_gpu: one device and no links.
//
//   [ GPU 0 ]
//
// Uses device only; every rate of the spec is ignored. num_gpus is 1.

#include <stdexcept>
#include <string>

#include "sim/machine/kinds/kinds.h"

namespace orrery::kinds {
namespace {

void build(Machine& machine) {
  if (machine.num_gpus() != 1) {
    throw std::invalid_argument("machine '" + machine.spec.name + "': num_gpus is " +
                                std::to_string(machine.num_gpus()) +
                                "; kind single_gpu has exactly 1");
  }
}

Route route(const Machine& machine, int from, int to) {
  return composed_route(kSingleGpu, machine, from, to);
}

}  // namespace

const TopologyKind kSingleGpu = {
    .name = "single_gpu",
    .summary = "one GPU, no links",
    .build = build,
    .route = route,
    .nvlink_domain_size = [](const MachineSpec&) { return 1; },
    .fabric = [](const Machine&, int, int) { return 0; },
    .port = [](const Machine&, int, int) { return Port{}; },
    .num_fabrics = [](const MachineSpec&) { return 0; },
};

}  // namespace orrery::kinds

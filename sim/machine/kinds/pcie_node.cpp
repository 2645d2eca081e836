// pcie_node: the GPUs of one server on PCIe, without NVLink.
//
//        +--- PCIe switches, root complexes and what joins the sockets ---+
//        |  ^          |  ^                   |  ^
//    down|  |up        |  |                   |  |     one slot a GPU, nvlink_rate (pcie_rate of a
//        v  |          v  |                   v  |     machine's file) each way
//      [GPU 0]       [GPU 1]       ...      [GPU n-1]
//
// Uses nvlink_rate and nvlink_latency, of the slots; NIC, leaf and spine fields are ignored. What
// is between slots is taken to carry all of them at once, which a link between two sockets may not:
// a pcie_rate that GPUs reach there together says so. num_gpus is 1 to 16, all in one node.

#include <stdexcept>
#include <string>

#include "sim/machine/kinds/kinds.h"
#include "sim/machine/kinds/rails.h"

namespace orrery::kinds {
namespace {

constexpr int kMaxGpus = 16;  // the most slots of a server

void build(Machine& machine) {
  const MachineSpec& spec = machine.spec;
  if (spec.num_gpus > kMaxGpus || spec.num_gpus > spec.gpus_per_node) {
    throw std::invalid_argument(
        "machine '" + spec.name + "': num_gpus is " + std::to_string(spec.num_gpus) +
        "; kind pcie_node is one node of gpus_per_node = " + std::to_string(spec.gpus_per_node) +
        " (at most " + std::to_string(kMaxGpus) + ")");
  }
  if (spec.num_gpus == 1) return;
  require_rate(spec, spec.nvlink_rate, "pcie_rate", "the slot of each GPU");
  for (int gpu = 0; gpu < spec.num_gpus; ++gpu) {
    const std::string prefix = "gpu" + std::to_string(gpu);
    machine.links.push_back({prefix + ".pcie.up", spec.nvlink_rate, spec.nvlink_latency});
    machine.links.push_back({prefix + ".pcie.down", spec.nvlink_rate, Seconds(0)});
  }
}

Route route(const Machine& machine, int from, int to) {
  return composed_route(kPcieNode, machine, from, to);
}

}  // namespace

const TopologyKind kPcieNode = {
    .name = "pcie_node",
    .summary = "one node, each GPU on a PCIe slot",
    .build = build,
    .route = route,
    .nvlink_domain_size = [](const MachineSpec& spec) { return spec.num_gpus; },
    .fabric = [](const Machine&, int, int) { return 0; },
    .port = [](const Machine& /*machine*/, int /*fabric*/,
               int gpu) { return Port{.up = {2 * gpu}, .down = {2 * gpu + 1}}; },
    .num_fabrics = [](const MachineSpec&) { return 1; },
};

}  // namespace orrery::kinds

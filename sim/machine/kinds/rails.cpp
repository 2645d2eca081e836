#include "sim/machine/kinds/rails.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace orrery::kinds {
namespace {

bool has_nics(const MachineSpec& spec, int domain_size) { return spec.num_gpus > domain_size; }

int num_leaves(const MachineSpec& spec) {
  const int nodes = (spec.num_gpus + spec.gpus_per_node - 1) / spec.gpus_per_node;
  const int pods = (nodes + spec.nodes_per_leaf - 1) / spec.nodes_per_leaf;
  return pods * spec.gpus_per_node;
}

int leaf_of(const MachineSpec& spec, int gpu) {
  return gpu / spec.gpus_per_node / spec.nodes_per_leaf * spec.gpus_per_node +
         gpu % spec.gpus_per_node;
}

}  // namespace

void require_rate(const MachineSpec& spec, BytesPerSecond rate, const char* field,
                  const char* needed_for) {
  if (!(rate.value() > 0) || !std::isfinite(rate.value())) {
    throw std::invalid_argument("machine '" + spec.name + "': " + field +
                                " is missing or not positive; kind " + spec.kind +
                                " needs it for " + needed_for);
  }
}

void build_rails(Machine& machine, int domain_size) {
  const MachineSpec& spec = machine.spec;
  const bool nics = has_nics(spec, domain_size);
  if (domain_size > 1 && spec.num_gpus > 1) {
    require_rate(spec, spec.nvlink_rate, "nvlink_rate", "the NVLink port of each GPU");
  }
  if (nics) {
    if (spec.num_gpus % spec.gpus_per_node != 0) {
      throw std::invalid_argument("machine '" + spec.name + "': num_gpus is " +
                                  std::to_string(spec.num_gpus) + "; expected whole nodes of " +
                                  std::to_string(spec.gpus_per_node) + " GPUs");
    }
    require_rate(spec, spec.nic_rate, "nic_rate", "the NIC of each GPU");
    if (!(spec.spine_oversubscription >= 1) || !std::isfinite(spec.spine_oversubscription)) {
      throw std::invalid_argument("machine '" + spec.name + "': spine_oversubscription is " +
                                  std::to_string(spec.spine_oversubscription) +
                                  "; expected at least 1 (1: as many up-links as down-links)");
    }
    if (spec.nodes_per_leaf < 1) {
      throw std::invalid_argument("machine '" + spec.name + "': nodes_per_leaf is " +
                                  std::to_string(spec.nodes_per_leaf) + "; expected at least 1");
    }
  }
  machine.links.reserve(static_cast<std::size_t>(spec.num_gpus) * (nics ? 4 : 2));
  for (int gpu = 0; gpu < spec.num_gpus; ++gpu) {
    const std::string prefix = "gpu" + std::to_string(gpu);
    machine.links.push_back({prefix + ".nvlink.up", spec.nvlink_rate, spec.nvlink_latency});
    machine.links.push_back({prefix + ".nvlink.down", spec.nvlink_rate, Seconds(0)});
    if (nics) {
      machine.links.push_back(
          {prefix + ".nic.up", spec.nic_rate, spec.nic_latency + spec.switch_latency});
      machine.links.push_back({prefix + ".nic.down", spec.nic_rate, Seconds(0)});
    }
  }
  if (!nics) return;
  const BytesPerSecond trunk = spec.nic_rate * (spec.nodes_per_leaf / spec.spine_oversubscription);
  for (int leaf = 0; leaf < num_leaves(spec); ++leaf) {
    const std::string prefix = "leaf" + std::to_string(leaf);
    machine.links.push_back({prefix + ".spine.up", trunk, spec.switch_latency});
    machine.links.push_back({prefix + ".spine.down", trunk, spec.switch_latency});
  }
}

int rails_fabric(const Machine& machine, int domain_size, int from, int to) {
  if (from / domain_size == to / domain_size) return kNvlinkFabric;
  return leaf_of(machine.spec, from) == leaf_of(machine.spec, to) ? kLeafFabric : kSpineFabric;
}

Port rails_port(const Machine& machine, int domain_size, int fabric, int gpu) {
  const int stride = has_nics(machine.spec, domain_size) ? 4 : 2;
  const int first = stride * gpu;
  if (fabric == kNvlinkFabric) return {{first}, {first + 1}};
  if (fabric == kLeafFabric) return {{first + 2}, {first + 3}};
  const int leaf = stride * machine.num_gpus() + 2 * leaf_of(machine.spec, gpu);
  return {{first + 2, leaf}, {leaf + 1, first + 3}};
}

}  // namespace orrery::kinds

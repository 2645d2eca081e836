#include "sim/machine/machine_link.h"

#include <algorithm>

namespace orrery {

std::optional<NetworkLink> network_of(const MachineSpec& machine) {
  const TopologyKind& kind = topology_kind(machine.kind);
  MachineSpec pair = machine;
  const int domain = kind.nvlink_domain_size(machine);
  pair.num_gpus = 2 * domain;
  const bool has_network = machine.nic_rate > BytesPerSecond(0) && kind.num_fabrics(pair) > 1;
  if (!has_network) return std::nullopt;
  const Machine nodes = make_machine(pair);
  const Route route = nodes.route(0, domain);
  NetworkLink link{.rate = machine.nic_rate, .latency = route.latency};
  for (const int idx : route.links) {
    link.rate = std::min(link.rate, nodes.links[static_cast<std::size_t>(idx)].rate);
  }
  return link;
}

std::optional<NetworkLink> link_between(const MachineSpec& from, const MachineSpec& to) {
  const auto first = network_of(from);
  const auto second = network_of(to);
  if (!first || !second) return std::nullopt;
  return NetworkLink{.rate = std::min(first->rate, second->rate),
                     .latency = std::max(first->latency, second->latency)};
}

Seconds network_latency(const MachineSpec& from, const MachineSpec& to) {
  Seconds longest;
  for (const MachineSpec* machine : {&from, &to}) {
    if (const auto link = network_of(*machine)) longest = std::max(longest, link->latency);
  }
  return longest;
}

}  // namespace orrery

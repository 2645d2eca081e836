#include "sim/machine/joined_machines.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {

namespace {

NetworkLink link_of(const MachineSpec& machine, std::optional<BytesPerSecond> rate,
                    Seconds latency) {
  if (rate) return {.rate = *rate, .latency = latency};
  const auto network = network_of(machine);
  if (!network) {
    throw std::invalid_argument("machine " + machine.name +
                                " has no network to another one; expected a rate of the link");
  }
  return {.rate = network->rate, .latency = latency};
}

}  // namespace

Machine join_machines(const Machine& front, int num_front, const Machine& behind,
                      std::optional<BytesPerSecond> rate, std::optional<Seconds> latency) {
  const Seconds longest = latency.value_or(network_latency(front.spec, behind.spec));
  JoinedMachines joined{.front = front,
                        .behind = behind,
                        .num_front = num_front,
                        .from_front = link_of(front.spec, rate, longest),
                        .from_behind = link_of(behind.spec, rate, longest),
                        .is_rate_given = rate.has_value()};
  Machine machine{.spec = front.spec, .links = front.links, .joined = nullptr};
  for (Link link : behind.links) {
    link.name = "behind." + link.name;  // names of links are distinct
    machine.links.push_back(std::move(link));
  }
  const int num_gpus = num_front + behind.num_gpus();
  for (int gpu = 0; gpu < num_gpus; ++gpu) {
    const NetworkLink& link = gpu < num_front ? joined.from_front : joined.from_behind;
    const std::string prefix = "gpu" + std::to_string(gpu) + ".between.";
    machine.links.push_back({.name = prefix + "up", .rate = link.rate, .latency = link.latency});
    machine.links.push_back({.name = prefix + "down", .rate = link.rate, .latency = Seconds(0)});
  }
  machine.joined = std::make_shared<const JoinedMachines>(std::move(joined));
  return machine;
}

}  // namespace orrery

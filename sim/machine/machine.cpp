#include "sim/machine/machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "sim/machine/joined_machines.h"
#include "sim/machine/kinds/kinds.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

void require(const MachineSpec& spec, bool condition, const std::string& what) {
  if (!condition) throw std::invalid_argument("machine '" + shown(spec.name) + "': " + what);
}

void check_common(const MachineSpec& spec) {
  require(spec, spec.num_gpus >= 1 && spec.num_gpus <= kMaxGpus,
          "num_gpus is " + std::to_string(spec.num_gpus) + "; expected 1 to " +
              std::to_string(kMaxGpus));
  require(spec, spec.gpus_per_node >= 1,
          "gpus_per_node is " + std::to_string(spec.gpus_per_node) + "; expected at least 1");
  const auto require_latency = [&](Seconds latency, const std::string& field) {
    require(spec, latency.value() >= 0 && std::isfinite(latency.value()),
            field + " is " + std::to_string(latency.value()) + " s; expected 0 or more, finite");
  };
  require_latency(spec.nvlink_latency, "nvlink_latency");
  require_latency(spec.nic_latency, "nic_latency");
  require_latency(spec.switch_latency, "switch_latency");
  const Device& device = spec.device;
  require(spec, device.hbm_capacity.value() > 0,
          "device '" + device.name + "' has no hbm_capacity; expected a positive amount");
  require(spec, device.hbm_bandwidth.value() > 0,
          "device '" + device.name + "' has no hbm_bandwidth; expected a positive rate");
}

void check_gpu(const Machine& machine, int gpu) {
  if (gpu < 0 || gpu >= machine.num_gpus()) {
    throw std::invalid_argument("machine '" + machine.spec.name + "' has no GPU " +
                                std::to_string(gpu) + "; it has 0 to " +
                                std::to_string(machine.num_gpus() - 1));
  }
}

}  // namespace

std::span<const TopologyKind> topology_kinds() {
  static const std::array<TopologyKind, 5> kinds = {
      kinds::kSingleGpu, kinds::kNvswitchNode, kinds::kPcieNode, kinds::kRailFatTree, kinds::kNvl72,
  };
  return kinds;
}

const TopologyKind& topology_kind(std::string_view name) {
  const auto kinds = topology_kinds();
  const auto found = std::ranges::find(kinds, name, &TopologyKind::name);
  if (found != kinds.end()) return *found;
  std::vector<std::string_view> names;
  std::string known;
  for (const TopologyKind& kind : kinds) {
    names.push_back(kind.name);
    known += (known.empty() ? "" : ", ") + std::string(kind.name);
  }
  throw std::invalid_argument("unknown machine kind '" + shown(name) + "'; did you mean '" +
                              nearest(name, names) + "'? Known: " + known);
}

Route kinds::composed_route(const TopologyKind& kind, const Machine& machine, int from, int to) {
  Route route;
  if (from == to) return route;
  const int fabric = kind.fabric(machine, from, to);
  const std::vector<int> down = kind.port(machine, fabric, to).down;
  route.links = kind.port(machine, fabric, from).up;
  route.links.insert(route.links.end(), down.begin(), down.end());
  for (const int link : route.links) {
    route.latency += machine.links[static_cast<std::size_t>(link)].latency;
  }
  return route;
}

namespace {

// Of two machines together: a GPU as its own machine numbers it.
struct OwnGpu {
  const Machine& machine;
  int gpu;
  bool is_behind;
};

OwnGpu place_of(const JoinedMachines& joined, int gpu) {
  const bool is_behind = gpu >= joined.num_front;
  return {.machine = is_behind ? joined.behind : joined.front,
          .gpu = is_behind ? gpu - joined.num_front : gpu,
          .is_behind = is_behind};
}

int num_domains(const Machine& machine) {
  return machine.nvlink_domain_of(machine.num_gpus() - 1) + 1;
}

std::vector<int> moved(std::vector<int> links, int by) {
  for (int& link : links) link += by;
  return links;
}

}  // namespace

int Machine::num_joined_gpus() const { return joined->num_front + joined->behind.num_gpus(); }

const Device& Machine::device_of(int gpu) const {
  return joined ? place_of(*joined, gpu).machine.device() : spec.device;
}

int Machine::num_fabrics() const {
  if (!joined) return topology_kind(spec.kind).num_fabrics(spec);
  return joined->front.num_fabrics() + joined->behind.num_fabrics() + 1;
}

int Machine::fabric(int from, int to) const {
  if (!joined) return topology_kind(spec.kind).fabric(*this, from, to);
  const OwnGpu source = place_of(*joined, from);
  const OwnGpu target = place_of(*joined, to);
  if (source.is_behind != target.is_behind) return num_fabrics() - 1;
  return source.machine.fabric(source.gpu, target.gpu) +
         (source.is_behind ? joined->front.num_fabrics() : 0);
}

Port Machine::port(int fabric, int gpu) const {
  if (!joined) return topology_kind(spec.kind).port(*this, fabric, gpu);
  const OwnGpu place = place_of(*joined, gpu);
  const int num_front = joined->front.num_fabrics();
  const auto front_links = static_cast<int>(joined->front.links.size());
  if (fabric == num_fabrics() - 1) {
    const int first = front_links + static_cast<int>(joined->behind.links.size()) + 2 * gpu;
    return {.up = {first}, .down = {first + 1}};
  }
  if ((fabric >= num_front) != place.is_behind) return {};
  Port own = place.machine.port(place.is_behind ? fabric - num_front : fabric, place.gpu);
  const int by = place.is_behind ? front_links : 0;
  return {.up = moved(std::move(own.up), by), .down = moved(std::move(own.down), by)};
}

Route Machine::route(int from, int to) const {
  check_gpu(*this, from);
  check_gpu(*this, to);
  if (!joined) return topology_kind(spec.kind).route(*this, from, to);
  Route route;
  if (from == to) return route;
  const int on = fabric(from, to);
  route.links = port(on, from).up;
  const std::vector<int> down = port(on, to).down;
  route.links.insert(route.links.end(), down.begin(), down.end());
  for (const int link : route.links) {
    route.latency += links[static_cast<std::size_t>(link)].latency;
  }
  return route;
}

int Machine::nvlink_domain_of(int gpu) const {
  check_gpu(*this, gpu);
  if (!joined) return gpu / topology_kind(spec.kind).nvlink_domain_size(spec);
  const OwnGpu place = place_of(*joined, gpu);
  return place.machine.nvlink_domain_of(place.gpu) +
         (place.is_behind ? num_domains(joined->front) : 0);
}

bool Machine::in_one_nvlink_domain(std::span<const int> gpus) const {
  if (gpus.empty()) return true;
  if (joined) {
    const auto [first, last] = std::ranges::minmax(gpus);
    return nvlink_domain_of(first) == nvlink_domain_of(last);
  }
  const int domain_size = topology_kind(spec.kind).nvlink_domain_size(spec);
  const auto [low, high] = std::ranges::minmax(gpus);
  check_gpu(*this, low);
  check_gpu(*this, high);
  return low / domain_size == high / domain_size;
}

Machine make_machine(const MachineSpec& spec) {
  const TopologyKind& kind = topology_kind(spec.kind);
  check_common(spec);
  Machine machine{.spec = spec, .links = {}, .joined = nullptr};
  kind.build(machine);
  return machine;
}

}  // namespace orrery

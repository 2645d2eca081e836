#pragma once

// What plans run on: one kind of device, the links between devices, and the route of a transfer.
// Topology kinds (sim/machine/kinds/<kind>.cpp) build a Machine from a MachineSpec.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// How fast the memory is for kernels that share a GPU (sim/des); 0: not measured.
struct SharingRates {
  BytesPerSecond hbm_rate;  // of a stream of reads by all SMs
  double sms_for_hbm = 0;   // share of the SMs that draws that rate
  double math_share = 0;    // of the dense peak, what the power limit leaves when all SMs compute
  // Times as long as alone, of the bytes of a collective that had to wait for its SMs.
  double waited_collective = 0;
  // Likewise, of the bytes of a collective beside kernels that draw all of `hbm_rate`.
  double loaded_collective = 0;
  // Kernels take as many times as long as 1 and this share of the memory's rate, where collectives
  // beside them move so much of it.
  double beside_collective = 0;
};

// What a board draws, modelled: `waiting` all the time, clocks up and nothing running, and beside
// it what the work of kernels takes (sim/cost/energy.h).
struct BoardPower {
  Watts waiting;
  Watts hbm;           // more, where bytes move at the device's hbm_bandwidth
  Watts arithmetic;    // more, where tensor units compute at its dense_flops
  double error = 0;    // of a service's energy, relative: half of the 80 % interval
  bool is_own = true;  // false: shares of the power limit, as they are of an H200
};

// What owners pay, where it is theirs and not the device's rental price; 0: not given.
struct OwnerCosts {
  double usd_per_gpu_hour = 0;  // without electricity, where usd_per_kwh is given
  double usd_per_kwh = 0;
  double pue = 0;  // power of the building over that of its machines; >= 1
};

// One GPU as its data sheet has it. Each number's source stands in `sources` under the field's
// name.
struct Device {
  std::string name;          // "h200-sxm"
  std::string vendor;        // "nvidia"; empty: unknown
  std::string architecture;  // "hopper": devices that share one run the same kernels
  Bytes hbm_capacity;
  BytesPerSecond hbm_bandwidth;
  std::map<DType, FlopsPerSecond> dense_flops;  // peak without sparsity; absent: not supported
  int num_sms = 0;
  SharingRates sharing;
  Watts tdp;
  std::optional<BoardPower> power;
  double usd_per_hour = 0;  // rental; 0: unknown
  std::map<std::string, std::string> sources;
};

// One direction of a physical connection. Concurrent flows share `rate` max-min fairly.
struct Link {
  std::string name;  // "gpu3.nvlink.up"
  BytesPerSecond rate;
  Seconds latency;
};

struct Route {
  std::vector<int> links;  // indices into Machine::links in order; empty when a == b
  Seconds latency;         // sum over links
};

// Numbers a topology kind needs; a kind ignores what does not apply to it and says so in its header
// comment. Rates are per GPU and per direction.
struct MachineSpec {
  std::string name;
  std::string kind;  // "single_gpu" "nvswitch_node" "pcie_node" "rail_fat_tree" "nvl72"
  Device device;
  int num_gpus = 1;
  int gpus_per_node = 8;
  BytesPerSecond nvlink_rate;  // and latency: of what joins the GPUs of a node, PCIe on pcie_node
  Seconds nvlink_latency;
  BytesPerSecond nic_rate;
  Seconds nic_latency;
  Seconds switch_latency;             // each leaf or spine hop
  double spine_oversubscription = 1;  // leaf down-links to up-links
  int nodes_per_leaf = 32;
  OwnerCosts costs;
  std::map<std::string, std::string> sources;
};

inline constexpr std::string_view kPcieNode = "pcie_node";  // of MachineSpec::kind

// The largest machine: what is built of one grows with its GPUs.
inline constexpr int kMaxGpus = 100'000;

// How one GPU enters and leaves a fabric: a route within the fabric is the `up` links of its source
// and then the `down` links of its destination, so routes need no table.
struct Port {
  std::vector<int> up;  // indices into Machine::links
  std::vector<int> down;
};

struct JoinedMachines;  // sim/machine/joined_machines.h

struct Machine {
  MachineSpec spec;  // of two machines together that of the first
  std::vector<Link> links;
  // Two machines whose GPUs a plan takes together; null: this is one. Shared, as it does not change
  // and machines are copied with the steps that are simulated on them.
  std::shared_ptr<const JoinedMachines> joined;

  [[nodiscard]] int num_gpus() const { return joined ? num_joined_gpus() : spec.num_gpus; }
  [[nodiscard]] const Device& device() const { return spec.device; }
  [[nodiscard]] const Device& device_of(int gpu) const;
  [[nodiscard]] int node_of(int gpu) const { return gpu / spec.gpus_per_node; }
  // Throws std::invalid_argument when a GPU does not exist. O(1).
  [[nodiscard]] Route route(int from, int to) const;
  // NVLink domain of a GPU: the node, or the rack of 72 where the kind says so.
  [[nodiscard]] int nvlink_domain_of(int gpu) const;
  // Whether all of `gpus` share one NVLink domain.
  [[nodiscard]] bool in_one_nvlink_domain(std::span<const int> gpus) const;
  // As of its TopologyKind. A GPU of two machines together has no port on the other's fabrics.
  [[nodiscard]] int num_fabrics() const;
  [[nodiscard]] int fabric(int from, int to) const;
  [[nodiscard]] Port port(int fabric, int gpu) const;

 private:
  [[nodiscard]] int num_joined_gpus() const;
};

// Builds links for spec.kind. 1 <= num_gpus <= kMaxGpus. Throws std::invalid_argument on an unknown
// kind (with the known ones), a size outside the kind's range, more than a
// node and not whole nodes, or a missing rate.
Machine make_machine(const MachineSpec& spec);

struct TopologyKind {
  std::string_view name;
  std::string_view summary;
  void (*build)(Machine& machine);  // checks the spec, fills machine.links
  Route (*route)(const Machine& machine, int from, int to);
  int (*nvlink_domain_size)(const MachineSpec& spec);
  // Which fabric carries from -> to (from != to), and a GPU's port on a fabric in [0, num_fabrics).
  int (*fabric)(const Machine& machine, int from, int to);
  Port (*port)(const Machine& machine, int fabric, int gpu);
  int (*num_fabrics)(const MachineSpec& spec);
};
std::span<const TopologyKind> topology_kinds();
// Throws std::invalid_argument with the known names.
const TopologyKind& topology_kind(std::string_view name);

}  // namespace orrery

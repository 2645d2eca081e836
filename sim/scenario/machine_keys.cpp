#include <utility>

#include "sim/machine/machine.h"
#include "sim/scenario/key_makers.h"
#include "sim/scenario/key_tables.h"

namespace orrery {
namespace {

using namespace key_makers;

Names topology_names() {
  Names found;
  for (const TopologyKind& kind : topology_kinds()) found.push_back(kind.name);
  return found;
}

std::vector<Key> device_keys(bool is_whole) {
  const auto always = [&](Key made) { return is_whole ? needed(std::move(made)) : made; };
  return {
      always(key(Kind::kText, "name", "under which its tables are found")),
      key(Kind::kText, "driver_name", "as the driver calls it"),
      always(key(Kind::kText, "vendor", "nvidia, amd, ...")),
      always(key(Kind::kText, "architecture", "hopper, blackwell, ...")),
      always(key(Kind::kSize, "hbm_capacity", "memory")),
      always(key(Kind::kDataRate, "hbm_bandwidth", "rate of its memory")),
      always(part("dense_flops", {"dense_flops"}, "peak of each format, without sparsity")),
      whole("num_sms", "streaming multiprocessors", 1, 100'000),
      part("sharing", {"sharing"}, "what kernels get that run at once"),
      key(Kind::kPower, "tdp", "power limit of the board"),
      part("power", {"power"}, "what parts of the work draw"),
      number("usd_per_hour", "rental price", 0, kEndless),
  };
}

}  // namespace

std::vector<Section> machine_sections() {
  const auto rate = [](std::string_view name) { return key(Kind::kComputeRate, name, "its peak"); };
  std::vector<Key> like = device_keys(/*is_whole=*/false);
  like.push_back(needed(key(Kind::kText, "like", "a device whose other values it has")));
  return {
      {.name = kMachineSection,
       .keys = {key(Kind::kText, "name", "as scenarios call it; without it the file's"),
                needed(choice("kind", topology_names(), "how GPUs are joined")),
                needed(or_part(key(Kind::kText, "device", "a name of 'orrery devices', or a path"),
                               {"device", "device_like"})),
                whole("num_gpus", "GPUs in all", 1, kMaxGpus),
                whole("gpus_per_node", "GPUs of a node", 1, kMaxGpus),
                key(Kind::kDataRate, "nvlink_rate", "of a GPU, one way"),
                key(Kind::kTime, "nvlink_latency", "of a message within a node"),
                key(Kind::kDataRate, "pcie_rate", "of a GPU's slot, one way, of a pcie_node"),
                key(Kind::kTime, "pcie_latency", "of a message between its slots"),
                key(Kind::kDataRate, "nic_rate", "of a GPU's network card, one way"),
                key(Kind::kTime, "nic_latency", "of a message between nodes"),
                key(Kind::kTime, "switch_latency", "of each switch passed"),
                number("spine_oversubscription", "leaf ports to hosts over those to spines", 1,
                       kEndless, false, "1"),
                whole("nodes_per_leaf", "nodes on a leaf switch", 1, kMaxGpus),
                key(Kind::kText, "collectives", "a directory of measured collectives"),
                part("cost", {"cost"}, "what its GPUs cost their owner")},
       .is_sourced = true},
      {.name = "device", .keys = device_keys(/*is_whole=*/true), .is_sourced = true},
      {.name = "device_like", .keys = std::move(like), .is_sourced = true},
      {.name = "dense_flops",
       .keys = {rate("fp32"), rate("bf16"), rate("fp16"), rate("fp8"), rate("fp8_block"),
                rate("mxfp4"), rate("nvfp4"), rate("int4"), rate("int8")},
       .is_sourced = true},
      {.name = "sharing",
       .keys = {needed(key(Kind::kDataRate, "hbm_rate", "that all SMs read together")),
                needed(whole("sms_for_hbm", "SMs that reach it")),
                needed(key(Kind::kComputeRate, "bf16_under_power_limit", "of long products")),
                number("waited_collective", "times as long, once it had to wait for SMs", 1, 10),
                number("loaded_collective", "likewise, beside the full rate of memory", 1, 10),
                number("beside_collective", "what kernels slow by, over its share of memory", 0.01,
                       10)},
       .is_sourced = true},
      {.name = "power",
       .keys = {needed(key(Kind::kPower, "waiting", "without work")),
                needed(key(Kind::kPower, "hbm", "besides, at the full rate of memory")),
                needed(key(Kind::kPower, "arithmetic", "besides, at the peak of products")),
                needed(number("error", "how far off these may be", 0, 1))},
       .is_sourced = true},
  };
}

}  // namespace orrery

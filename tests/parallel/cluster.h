// A machine for plans whose time is simulated.
#pragma once

#include "sim/machine/machine.h"

namespace orrery::testing {

// Nodes of eight GPUs like an H200 SXM, each with a 400 Gbit/s NIC.
inline Machine cluster(int num_gpus) {
  MachineSpec spec;
  spec.name = "cluster";
  spec.kind = "rail_fat_tree";
  spec.num_gpus = num_gpus;
  spec.nvlink_rate = BytesPerSecond(450e9);
  spec.nvlink_latency = Seconds(0.6e-6);
  spec.nic_rate = BytesPerSecond(50e9);
  spec.nic_latency = Seconds(2.7e-6);
  spec.switch_latency = Seconds(0.15e-6);
  spec.device.name = "device";
  spec.device.vendor = "nvidia";
  spec.device.architecture = "hopper";
  spec.device.hbm_capacity = Bytes(141e9);
  spec.device.hbm_bandwidth = BytesPerSecond(4.8e12);
  spec.device.num_sms = 132;
  spec.device.dense_flops = {{DType::kBf16, FlopsPerSecond(989e12)}};
  return make_machine(spec);
}

}  // namespace orrery::testing

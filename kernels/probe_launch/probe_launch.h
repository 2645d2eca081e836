#pragma once

// Costs of reaching the GPU, measured on the device in use: the host's time to enqueue a kernel,
// the period of dependent empty kernels launched one by one and as nodes of a replayed graph, and
// the round trip of a flag copied to the host. They are the HostCosts of sim/cost.

#include <string>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

struct ProbeRow {
  std::string probe;
  Seconds median;
  double spread = 0;  // interquartile range / median
  int samples = 0;
};

// Runs on the current device, about one second. Throws cuda::Error.
//   eager_enqueue     host time of one cudaLaunchKernel, stream held shut so that nothing drains
//   eager_period      device time per kernel of 1,000 dependent empty kernels launched one by one
//   graph_period      device time per node of a replayed graph of 1,000 dependent empty kernels
//   graph_launch      host time of one cudaGraphLaunch of that graph
//   d2h_sync          host time from launching a kernel that writes a flag to having read the flag
//                     in host memory (launch, 4-byte copy, stream synchronise)
std::vector<ProbeRow> probe_launch();

}  // namespace orrery

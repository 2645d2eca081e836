#pragma once

// Costs of reaching the GPU, measured on the device in use: the host's time to enqueue a kernel,
// the period of dependent empty kernels launched eagerly and as nodes of a replayed graph, the
// gap between kernels that fill the GPU, and the round trip of a flag copied to the host. They are
// the HostCosts of sim/cost.

#include <vector>

#include "kernels/harness/probe.h"

namespace orrery {

// Runs on the current device, about one second. Throws cuda::Error.
//   eager_enqueue     host time of one cudaLaunchKernel, stream held shut so that nothing drains
//   eager_period      device time per kernel of 1,000 dependent empty kernels launched eagerly
//   graph_period      device time per node of a replayed graph of 1,000 dependent empty kernels
//   graph_pdl_period  the same with programmatic dependent launch: each kernel lets the next one
//                     start at once, which waits for it to end (cudaGridDependencySynchronize)
//   eager_gap, graph_gap, graph_pdl_gap
//                     time from the end of a kernel that fills the GPU (a block of 1,024 threads
//                     and most of the shared memory on each SM) to the next one's work: kernels
//                     that work for T and for 2 T have periods gap + T and gap + 2 T
//   graph_launch      host time of one cudaGraphLaunch of a graph of 1,000 empty kernels
//   d2h_sync          host time from launching a kernel that writes a flag to having read the flag
//                     in host memory (launch, 4-byte copy, stream synchronise)
std::vector<ProbeRow> probe_launch();

}  // namespace orrery

#pragma once

// Device memory that a program holds besides its buffers: what the driver, contexts, libraries,
// graphs and communicators take. These are constants of engine profiles.

#include <vector>

#include "kernels/harness/probe.h"

namespace orrery {

// In MiB, each as the free memory of the device fell by it; in a process that has not used the
// device before. Rows, in the order in which they are measured:
//   total, reserved        of the board, and what its driver keeps (NVML)
//   held_before            by others, or the driver, when the process starts
//   context                of the process's context; its modules too when CUDA_MODULE_LOADING=EAGER
//   malloc                 of 1,000 allocations of 4 KiB, 64 of 2 MiB + 1, one of 1 GiB + 1
//   gemm                   cuBLASLt's code for a few shapes, without workspace
//   graph                  instantiated and launched graphs of kernels with small or large
//   arguments peers, nccl_…          among all devices present, of the first one: peer access;
//   communicators;
//                          after a call of each kind; a second communicator; with two devices or
//                          more
//   trace                  while CUPTI records; afterwards
// Throws cuda::Error, cuda::NcclError.
std::vector<ProbeRow> probe_memory();

}  // namespace orrery

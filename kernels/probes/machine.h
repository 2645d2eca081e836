#pragma once

// What a kernel that runs a whole forward is made of, measured on the device in use: barriers
// within a block, values between SMs, and products of a page of weights (kernels/megakernel).

#include <vector>

#include "kernels/harness/probe.h"

namespace orrery {

// Runs on the current device, under a second. Times in ns, at the clock that SMs have under so
// light a load. Throws cuda::Error.
//   barrier_passed   waiting for a phase of a barrier in shared memory that has ended already
//   barrier_round    a warp arrives and waits for another warp's arrival, half of both ways: what
//                    handing a page over takes
//   block_barrier    a barrier of all 256 threads of a block
//   sm_value         a value from one SM to another through the L2 cache, half of both ways: the
//                    median over pairs of SMs; sm_value_least, sm_value_most of them
//   grid_barrier     a barrier of all SMs by an atomic counter
//   page_tensor      8 warps multiply a page of bf16 weights (16 rows of 1,024) by one vector on
//                    the tensor cores, whose instructions would take eight vectors as well
//   page_cuda        the same on the CUDA cores, in fp32
std::vector<ProbeRow> probe_machine();

}  // namespace orrery

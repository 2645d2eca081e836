#pragma once

// What a call launches, as it stands in a graph.

#include <string>

#include "kernels/harness/gpu_kernel.h"

namespace orrery {

// Launches `kernel_case` and captures a second launch. By node: the device function (its template
// arguments are in its name), threads of a block, dynamic shared memory, and whether one block or
// several run; copies and memsets by their kind. Throws cuda::Error.
std::string launch_signature(KernelCase& kernel_case);

}  // namespace orrery

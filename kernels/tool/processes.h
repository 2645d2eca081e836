#pragma once

// The processes that run a command together: this one alone in orrery-gpu, those that mpirun
// started in orrery-gpu-mpi.

#include "kernels/comm/processes/process_group.h"

namespace orrery::tool {

// Started when first asked for. Throws std::invalid_argument in a program without MPI of which a
// launcher has started several.
const ProcessGroup& processes();

// Before the process ends with `exit_code`: waits for the others where it is 0, else ends them.
void end_processes(int exit_code);

}  // namespace orrery::tool

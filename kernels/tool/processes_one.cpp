#include <stdexcept>
#include <string>

#include "kernels/tool/processes.h"

namespace orrery::tool {

const ProcessGroup& processes() {
  if (const int count = launched_processes(); count > 1) {
    throw std::invalid_argument("started as one of " + std::to_string(count) +
                                " processes; orrery-gpu-mpi is the program that runs so");
  }
  static const ProcessGroup alone;
  return alone;
}

void end_processes(int) {}

}  // namespace orrery::tool

#include <memory>

#include "kernels/tool/processes.h"

namespace orrery::tool {
namespace {

// Ended by end_processes(), not with other statics: MPI must end before the program's last lines.
std::unique_ptr<MpiProcesses>& started() {
  static std::unique_ptr<MpiProcesses> processes;
  return processes;
}

}  // namespace

const ProcessGroup& processes() {
  if (!started()) started() = std::make_unique<MpiProcesses>();
  return started()->group();
}

void end_processes(int exit_code) {
  if (!started()) return;
  if (exit_code != 0) started()->group().abort(exit_code);
  started().reset();
}

}  // namespace orrery::tool

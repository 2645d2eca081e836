#include <cstdio>
#include <string>

#include "kernels/cuda/kernel_trace.h"
#include "kernels/probes/trace.h"
#include "kernels/tool/checks.h"

namespace orrery::tool {

CheckCount check_trace_records() {
  CheckCount count;
  if (const std::string problem = kernel_trace_problem(); !problem.empty()) {
    std::printf("skipped: %s\n", problem.c_str());
    return count;
  }
  for (const TraceReport& report : check_trace()) {
    std::printf("%s trace %s", report.faults.empty() ? "ok  " : "FAIL", report.what.c_str());
    for (const std::string& fault : report.faults) std::printf("  %s", fault.c_str());
    std::printf("\n");
    ++(report.faults.empty() ? count.passed : count.failed);
  }
  std::fflush(stdout);
  return count;
}

}  // namespace orrery::tool

#pragma once

// Single kernels against their references, in the calls that were asked for.

#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/execute/run_watch.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/tool/checks.h"
#include "sim/units/units.h"

namespace orrery::tool {

struct KernelCheckOptions {
  std::string_view cases;       // what the text of each call has in it
  std::filesystem::path calls;  // only those of this file, as list_small() prints them
  bool small = false;           // only those that small_calls() chooses
  double most_work = 2e6;       // for small_calls()
  bool once = false;            // no tile is lost
  Seconds limit{0};             // no call begins later; 0: all do
};

// Prints a line per call, and how many did not begin in time.
CheckCount check_kernels(const std::vector<const GpuKernel*>& kernels,
                         const KernelCheckOptions& options, RunWatch& watch);
// Prints the calls that `small` chooses, one a line; behind a tab, the functions of libraries that
// a call launches.
void list_small(const std::vector<const GpuKernel*>& kernels, const KernelCheckOptions& options);

}  // namespace orrery::tool

#pragma once

// When each kernel and copy on the GPUs of this process ran, as CUPTI records it, graph nodes too.
// CUPTI is loaded when it is first needed; without it steps are timed as a whole only.
//
// Costs on an H200 (`orrery-gpu time trace`, chains of 300 kernels): while tracing, a node of a
// graph takes 0.6 to 0.8 us longer, a kernel launched by itself 0.2 to 0.7 us, and 12 MiB of the
// device are taken; afterwards up to 0.4 us may stay. A kernel behind each that stores the GPU's
// clock would take 0.9 to 4.3 us instead. So times of steps are taken before any tracing.

#include <cstdint>
#include <string>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

struct KernelRecord {
  int device = 0;            // CUDA ordinal in this process
  std::uint32_t stream = 0;  // CUPTI's id (cuptiGetStreamIdEx); of graph nodes that of the launch
  std::uint64_t graph_node = 0;  // 0: not of a graph; ids rise in the order of capture
  bool is_copy = false;          // memcpy or memset
  std::string name;
  // When its first block began: with programmatic launch that is before the end of the kernel ahead
  // of it, for which it then waits.
  Seconds start;  // one clock for all devices of the process, from when CUPTI was loaded
  Seconds end;
};

class KernelTrace {
 public:
  // Starts recording. Throws std::runtime_error when CUPTI is missing or refuses: the text says
  // why.
  KernelTrace();
  ~KernelTrace();
  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;
  // Everything recorded since the last call, once all work is done (the caller synchronises), by
  // start.
  std::vector<KernelRecord> take();
};

// Empty when CUPTI can be used here, else why not.
std::string kernel_trace_problem();

}  // namespace orrery

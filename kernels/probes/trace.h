#pragma once

// Whether KernelTrace sees every kernel and copy, and what tracing costs.

#include <string>
#include <vector>

#include "kernels/harness/probe.h"

namespace orrery {

struct TraceReport {
  std::string what;                 // "eager", "graph captured before"
  std::vector<std::string> faults;  // empty: passed
};

// Kernels of known length, copies and memsets on the current device, launched eagerly and as
// graphs captured before and while tracing, of one stream and forked: every one is recorded once,
// in order, as long as it was, with its stream; ids of graph nodes rise in the order of capture.
// Throws std::runtime_error when CUPTI cannot be used.
std::vector<TraceReport> check_trace();

// Device time per kernel of chains of 300 kernels: empty ones, and ones that fill the GPU for
// 4 us; one by one, as a graph, and as a graph with programmatic dependent launch. Each untraced,
// traced, and untraced again afterwards; "stamped" instead has a kernel of one thread that stores
// the GPU's clock behind each. "recorded" is the median length of a kernel as CUPTI gives it.
// Throws std::runtime_error when CUPTI cannot be used.
std::vector<ProbeRow> probe_trace();

}  // namespace orrery

#pragma once

// Probes and co-run measurements as CSV with their provenance on standard output.

#include <string_view>

namespace orrery::tool {

void print_launch_probes();                 // probe_launch
void print_trace_probes();                  // probe_trace: what tracing costs
void print_memory_probes();                 // probe_memory: what programs hold besides buffers
void print_all_probes();                    // and streams, synchronisation, clocks
void print_co_runs(std::string_view load);  // pairs with a load of that name; empty: all

}  // namespace orrery::tool

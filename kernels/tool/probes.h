#pragma once

// Probes and co-run measurements as CSV with their provenance, on standard output or as files.

#include <filesystem>
#include <string_view>

namespace orrery::tool {

void print_launch_probes();     // probe_launch
void print_trace_probes();      // probe_trace: what tracing costs
void print_memory_probes();     // probe_memory: what programs hold besides buffers
void print_machine_probes();    // probe_machine: what one kernel for all is made of
void print_host_link_probes();  // probe_host_link: KV blocks from the host's memory and to it
void print_all_probes();        // and streams, synchronisation, clocks
void print_co_runs(std::string_view load);  // pairs with a load of that name; empty: all

// What `orrery-gpu calibrate` knows of a GPU and its host besides kernels, those of the files below
// that are not in `directory` yet: probes.csv (probe_launch, probe_clock), power_limit.csv
// (probe_power_limit), and unless `quick` uneven_attention.csv: attention_decode of contexts that
// differ beside as many tokens in equal ones. 25 s, quick 8. Throws cuda::Error, std::runtime_error
// for a file that cannot be written or without NVML.
void write_device_probes(const std::filesystem::path& directory, bool quick);

}  // namespace orrery::tool

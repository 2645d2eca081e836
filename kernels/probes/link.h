#pragma once

// NVLink between the GPUs of a host: latency and bandwidth of each pair, one way, both ways and
// with all GPUs at once, by copy engines and by SMs.

#include <span>
#include <string>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

struct LinkRow {
  std::string probe;    // "latency_store", "latency_load" or "bandwidth"
  std::string method;   // "sm_store", "sm_load" or "copy_engine"
  std::string traffic;  // "one_way", "both_ways" or "all_to_all"
  int from = 0;         // GPU that holds the data; -1: all
  int to = 0;
  Bytes bytes;        // per transfer; 0 for latencies
  Seconds time;       // of one transfer, or one way
  double spread = 0;  // interquartile range / median
  int samples = 0;
};

// Two devices or more, on an otherwise idle host; about two seconds. Throws cuda::Error.
//   latency_store  half the round trip of a flag that two GPUs store into each other's memory
//   latency_load   one dependent load from the other GPU's memory
//   bandwidth      one_way: `from` to `to` alone; both_ways: both at once, the slower one's time;
//                  all_to_all: every GPU sends `bytes` to each other in turn, no two to the same
//                  one, the slowest GPU's time for all n-1
std::vector<LinkRow> probe_link(std::span<const int> devices);

}  // namespace orrery

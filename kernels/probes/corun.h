#pragma once

// Two loads on two streams of one GPU: how much each slows the other. Both are launched again and
// again; only the stretch of time in which both run counts.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/probes/loads.h"
#include "sim/units/units.h"

namespace orrery {

struct CoRunSide {
  std::string load;
  Seconds alone;     // one launch, nothing else running
  Seconds together;  // one launch on average while the other load runs: window / launches ended
};

struct CoRunRow {
  CoRunSide first;
  CoRunSide second;
  double spread = 0;  // of the first's `together`: (largest - smallest) / median over the repeats
  int repeats = 0;
  double sm_clock_mhz = 0;  // under way; 0 where NVML is missing
};

// Runs every pair of load_kinds(), a load beside itself included, of which one's name starts with
// `prefix`, and hands each row to `on_row`. About 0.1 s per pair; some 30 GB of device memory.
void co_run(std::string_view prefix, const std::function<void(const CoRunRow&)>& on_row);

}  // namespace orrery

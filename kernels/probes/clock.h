#pragma once

// What the power limit leaves of the clock: SM clock, board power and rate under seconds of a large
// GEMM, and under seconds of reading memory.

#include <vector>

#include "kernels/harness/probe.h"
#include "sim/units/units.h"

namespace orrery {

// Runs on the current device for three times `duration`. Rows, each over readings every 20 ms of
// the second half, when clocks have settled:
//   clock_idle, clock_gemm, clock_read   SM clock, MHz
//   power_idle, power_gemm, power_read   board power, W
//   rate_gemm (TFLOP/s), rate_read (GB/s)
// and clock_gemm_first, the clock in the first 100 ms. Throws std::runtime_error where NVML is
// missing.
std::vector<ProbeRow> probe_clock(Seconds duration = Seconds(3));

}  // namespace orrery

#pragma once

// What a step pays between kernels and collectives, beyond the time of either by itself: order
// across streams, and the host's time to enqueue a collective.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kernels/harness/measure.h"
#include "sim/plan/plan.h"

namespace orrery {

struct HopRow {
  std::string probe;
  LaunchMode mode = LaunchMode::kGraph;
  std::string collective;  // empty: none
  std::int64_t bytes = 0;  // the whole buffer
  Measurement time;
};

// On `devices`, two or more; calls `row` with each. A kernel works for about 4 us on all SMs and
// starts early (programmatic dependent launch); collectives are NCCL's.
//   kernel, collective       one by itself, again and again on a stream
//   kernels                  two of the former, one after the other
//   kernels_across           the second on another stream, and back
//   both                     a kernel and a collective, one after the other
//   both_across              the collective on another stream, and back
//   enqueue                  host time of one collective, streams held shut so that nothing drains
// Throws cuda::Error, cuda::NcclError.
void measure_hops(std::span<const int> devices, const std::function<void(const HopRow&)>& row);

}  // namespace orrery

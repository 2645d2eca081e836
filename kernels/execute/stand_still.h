#pragma once

// A stream that does nothing for a while, as that of a rank that comes late.

#include "kernels/cuda/handles.h"
#include "sim/units/units.h"

namespace orrery {

// What `stream` gets from now on begins later by `time`, to about a microsecond: one thread of the
// GPU waits for its clock. May be captured. Throws std::invalid_argument for a time below 0 or
// above 10 s.
void stand_still(const cuda::Stream& stream, Seconds time);

}  // namespace orrery

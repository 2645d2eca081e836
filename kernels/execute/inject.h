#pragma once

// Makes the failures that fault.h describes, within a rank.

#include "kernels/cuda/handles.h"
#include "kernels/execute/fault.h"

namespace orrery {

// Prints kFaultMark to stderr when it happens.
// In the rank's thread, before the op is enqueued on `stream`. kThrow and kNccl throw, kHang does
// not return, kKill ends the process, kStall holds up what the stream gets from now on until the
// process ends; kNan does nothing here: what the op wrote must be overwritten after it.
void inject(FaultKind kind, const cuda::Stream& stream);

}  // namespace orrery

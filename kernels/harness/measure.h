#pragma once

// Times one case: graph replays or eager launches, cold or warm L2, until the spread is small.

#include <functional>

#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/measurement.h"
#include "sim/units/units.h"

namespace orrery {

// Sets whose operands together exceed twice the L2 cache of the current device when one set touches
// `bytes`; at least 1, at most 512: operands of less than 2/512 of it stay in L2 all the same.
int sets_for(Bytes bytes);

// Runs on the current device. Throws cuda::Error, and std::runtime_error when keep_sample refuses
// nearly everything.
Measurement measure(KernelCase& kernel_case, const MeasureOptions& options);

// Keeps the GPU busy with cold launches from a graph. `tick` is called every few milliseconds with
// the number of launches finished so far, until it returns false. Throws cuda::Error.
void run_sustained(KernelCase& kernel_case, const std::function<bool(std::int64_t)>& tick);

}  // namespace orrery

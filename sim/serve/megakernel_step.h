#pragma once

// A decode step that runs as one kernel (sim/megakernel): its time, and when its ops ran.

#include "sim/megakernel/timing.h"
#include "sim/serve/step_time.h"
#include "sim/timeline/timeline.h"

namespace orrery {

// Relative error of such a time, one standard deviation: of the five measured forwards that its
// parameters were not fitted to (docs/kernels/megakernel.md).
inline constexpr double kMegakernelSpread = 0.08;

// The shape of such a step: rows that fill up its size are sequences as the others, since their
// instructions run, too (with keys that they do not have, so that a step comes out a little long).
StepShape megakernel_shape(StepShape shape);

// Of a plan on setup.machine with the times of setup.megakernel; work and energy as setup.cost has
// them. Throws std::invalid_argument as megakernel::require_runs does.
DeviceTime megakernel_time(const StepSetup& setup, const Plan& plan);

// Ops of which some instruction is: from the first that had its values to the end of the last. Each
// SM goes on to the next op by itself, so that spans overlap, as streams' do not.
Timeline megakernel_timeline(const Plan& plan, int num_sms, const megakernel::MachineTimes& times);

}  // namespace orrery

#pragma once

// What the clock that the power limit leaves does to the time of one kernel (power_limit.h).

#include "sim/cost/power_limit.h"
#include "sim/machine/machine.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// A time of the tables at the clock asked about; `time` also says at which clock it was measured.
// Longer at the limit, by the factors of `limit`:
//   products         by their factor where arithmetic takes longer than the operands' bytes, by
//                    nothing where these do, and evenly between
//   attention        by its factor times the operations' part of the data sheet's time
//   everything else  by that of attention, which follows the clock, for what is left of its time
//                    when its bytes have gone at the rate of a stream
// Counted as arithmetic (PowerState::kArithmetic): what draws as much as large products do, of
// others as much of the time as lies between a stream's draw and theirs.
Seconds at_clock(Seconds time, const PowerLimit& limit, PowerState state, const Device& device,
                 const KernelOp& op);

}  // namespace orrery

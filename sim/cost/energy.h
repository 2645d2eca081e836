#pragma once

// What a kernel takes of energy beside what its GPU draws in any case. Moving a byte and computing
// an operation take the same wherever they happen and however long it lasts, so the energy of a
// call follows from its work:
//
//   E = ((a C)^p + (h M)^p)^(1/p)    p = 1.5
//
// C: time of its operations at the device's peak, M: of its bytes at the HBM rate, a and h:
// BoardPower::arithmetic and hbm. Both at once take less than their sum, as sim/cost/clock.h has
// it. A service takes this and BoardPower::waiting of all its GPUs all the time.

#include <string_view>

#include "sim/machine/machine.h"
#include "sim/plan/plan.h"
#include "sim/units/energy.h"

namespace orrery {

// Throws std::invalid_argument as work_of and peak_flops do.
Joules energy_of(const BoardPower& power, const Device& device, const KernelOp& op);
// A rank's part of a collective: its buffer is read and written once. What links draw is not in it.
Joules energy_of(const BoardPower& power, const Device& device, const CommOp& op);

}  // namespace orrery

#pragma once

// Runs one kernel op of a plan on one rank, in double, by the reference of its kernel.

#include <vector>

#include "kernels/binding/kernel_call.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

// Throws std::invalid_argument, naming the op, for a kernel that has no reference.
void require_reference(const Op& op);

// As KernelReference::run. Throws as require_reference, too.
Results run_kernel(const KernelCall& call);

}  // namespace orrery::reference

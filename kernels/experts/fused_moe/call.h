#pragma once

// A fused_moe op of a plan as what the kernel takes. No CUDA.

#include "kernels/binding/step_input.h"
#include "kernels/experts/fused_moe/shape.h"
#include "sim/plan/plan.h"

namespace orrery {

// Ranks are as many as have its experts. Throws std::invalid_argument as dim(), and for experts
// that do not divide.
FusedMoeShape fused_moe_call(const KernelOp& op, const Routing& routing);

}  // namespace orrery

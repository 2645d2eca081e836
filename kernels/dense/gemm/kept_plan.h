#pragma once

// Plans of GEMMs that launches of one stream share.

#include "kernels/binding/bind_resources.h"
#include "kernels/dense/gemm/gemm.h"

namespace orrery {

// Kept for the life of the resources; all share one workspace. Throws as GemmPlan does.
const GemmPlan& kept_gemm_plan(BindResources& resources, const GemmShape& shape);

}  // namespace orrery

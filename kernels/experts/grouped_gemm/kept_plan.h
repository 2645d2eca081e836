#pragma once

// Plans of grouped GEMMs that launches of one stream share.

#include "kernels/binding/bind_context.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"

namespace orrery {

// Of the op's resources, kept for their life, chosen for the load; all share one workspace. Weights
// are fetched early where the op's counts are there. Throws as GroupedGemmPlan does.
const GroupedGemmPlan& kept_grouped_gemm_plan(const BindContext& context,
                                              const GroupedGemmShape& shape,
                                              const GroupedGemmLoad& load);

}  // namespace orrery

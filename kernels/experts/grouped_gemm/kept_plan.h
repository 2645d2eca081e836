#pragma once

// Plans of grouped GEMMs that launches of one stream share.

#include "kernels/binding/bind_resources.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"

namespace orrery {

// Kept for the life of the resources, chosen for the load; all share one workspace. `may_overlap`:
// what GroupedGemmOptions::overlap asks for holds but for w. Throws as GroupedGemmPlan does.
const GroupedGemmPlan& kept_grouped_gemm_plan(BindResources& resources,
                                              const GroupedGemmShape& shape,
                                              const GroupedGemmLoad& load, bool may_overlap);

}  // namespace orrery

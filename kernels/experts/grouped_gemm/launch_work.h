#pragma once

// What a grouped gemm takes as the blocks of its launch divide it. No CUDA.

#include "kernels/experts/grouped_gemm/choice.h"
#include "kernels/kernel_spec.h"

namespace orrery {

// On so many SMs of an H200, with the rows of groups spread as by chance. LaunchWork{} without a
// row.
LaunchWork grouped_gemm_launch(const GroupedGemmShape& shape, const GroupedGemmLoad& load,
                               int num_sms);

// Likewise where the load goes in tiles, whatever it is.
LaunchWork tiled_launch(const GroupedGemmShape& shape, const GroupedGemmLoad& load, int num_sms);

// What all SMs could compute until so many of them have done the last tile over what the rows need:
// a wave of one tile on each after another, the last cut in parts. As if a load went in tiles whose
// weights are streamed.
double computed_in_waves(const GroupedGemmShape& shape, const GroupedGemmLoad& load, int num_sms);

}  // namespace orrery

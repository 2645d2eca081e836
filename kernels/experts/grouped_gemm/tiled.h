#pragma once

// grouped_gemm for many rows per group: tiles of x and w on the tensor cores.

#include "kernels/cuda/handles.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"
#include "kernels/experts/grouped_gemm/tiled_choice.h"

namespace orrery {

// One grouped gemm, semantics as GroupedGemmPlan::launch, tiled as `choice` says. No workspace,
// deterministic. Throws std::invalid_argument for tiles that are not built, cuda::Error when the
// launch fails.
void grouped_gemm_tiled(const cuda::Stream& stream, const GroupedGemmShape& shape,
                        const TiledChoice& choice, const GroupedGemmOperands& operands,
                        bool programmatic);

// The same with kSwapAbChoice.
void grouped_gemm_swap_ab(const cuda::Stream& stream, const GroupedGemmShape& shape,
                          const GroupedGemmOperands& operands, bool programmatic);

}  // namespace orrery

#pragma once

// grouped_gemm for many rows per group: tiles of x and w on the tensor cores.

#include "kernels/cuda/handles.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"
#include "kernels/experts/grouped_gemm/tiled_choice.h"

namespace orrery {

struct TiledOptions {
  bool programmatic = false;  // as GroupedGemmOptions
  int free_sms = 0;
};

// One grouped gemm, semantics as GroupedGemmPlan::launch, tiled as `choice` says. No workspace,
// deterministic. Throws std::invalid_argument for tiles that are not built, cuda::Error when the
// launch fails.
void grouped_gemm_tiled(const cuda::Stream& stream, const GroupedGemmShape& shape,
                        const TiledChoice& choice, const GroupedGemmOperands& operands,
                        const TiledOptions& options);

// The same with the tiles of kSwapAbChoice.
void grouped_gemm_swap_ab(const cuda::Stream& stream, const GroupedGemmShape& shape,
                          const TiledChoice& choice, const GroupedGemmOperands& operands,
                          const TiledOptions& options);

}  // namespace orrery

#pragma once

// grouped_gemm for few rows per group: a stream of the active groups' weights through the tensor
// cores.

#include <cstddef>

#include "kernels/cuda/handles.h"
#include "kernels/experts/grouped_gemm/choice.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"

namespace orrery {

struct StreamedOptions {
  bool programmatic = false;  // as GroupedGemmOptions
  bool overlap = false;
  int free_sms = 0;
};

// Of any tile, on the current device.
std::size_t streamed_workspace_bytes();

// One grouped gemm, semantics as GroupedGemmPlan::launch, deterministic. `workspace` has
// streamed_workspace_bytes(), 256-byte aligned, zeroed before its first use; launches leave it so
// that the next may use it. Throws std::invalid_argument for tiles that are not built and for more
// work items than 2^31 - 1 cuts, cuda::Error when the launch fails.
void grouped_gemm_streamed(const cuda::Stream& stream, const GroupedGemmShape& shape,
                           const StreamedTile& tile, const GroupedGemmOperands& operands,
                           std::byte* workspace, const StreamedOptions& options);

}  // namespace orrery

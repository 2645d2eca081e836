#pragma once

// The first linear layer of a mixture of experts on rows that lie with their tokens: gather_mul and
// grouped_gemm in one, without the rows in between. On tensor cores (sm_90a), summed in fp32.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/cuda/handles.h"
#include "kernels/experts/grouped_gemm/choice.h"

namespace orrery {

// Device pointers, row-major and contiguous; x, w and y 16-byte aligned.
struct GatheredGemmOperands {
  const bf16* x = nullptr;  // [tokens, k]
  std::int64_t tokens = 0;
  const std::int32_t* row_token = nullptr;  // [max_rows], rows sorted by group, from row 0
  const float* row_weight = nullptr;        // [max_rows]; null: 1
  const bf16* w = nullptr;                  // [groups, n, k]
  const std::int32_t* counts = nullptr;     // [groups], rows of each group
  bf16* y = nullptr;                        // [max_rows, n]
};

// Throws std::invalid_argument for another dtype than bf16, or as require_grouped_gemm_shape()
// does.
void require_gathered_gemm_shape(const GroupedGemmShape& shape);

struct GatheredGemmOptions {
  bool programmatic = false;  // as GroupedGemmOptions
  int free_sms = 0;
};

// y[row] = row_weight[row] (x[row_token[row]] w[group of the row]^T), rounded to bf16 once:
// gathered rows that are weighed by themselves (gather_mul) are rounded too. A row whose token is
// not in 0 .. tokens - 1 is 0. Counts as GroupedGemmPlan::launch takes them, whatever the tile is
// chosen for: kSwapAbChoice or TiledChoice{}. Row_token and row_weight of rows past the sum of
// counts are not read, y of these not written. Deterministic, without a workspace. Empty shapes
// launch nothing. Throws std::invalid_argument for tiles that are not built, operands that are null
// or not aligned, 2^36 bytes of x or more; cuda::Error when the launch fails.
void grouped_gemm_gather(const cuda::Stream& stream, const GroupedGemmShape& shape,
                         const TiledChoice& tile, const GatheredGemmOperands& operands,
                         const GatheredGemmOptions& options = {});

}  // namespace orrery

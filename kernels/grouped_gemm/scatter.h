#pragma once

// Where grouped_gemm_scatter's rows go.

#include <cstdint>

#include "kernels/cuda/dtypes.h"

namespace orrery {

// out[row_token[row], :] += row_weight[row] y[row, :]
struct ScatterTarget {
  bf16* out = nullptr;                      // [tokens, n]
  const std::int32_t* row_token = nullptr;  // [rows]
  const float* row_weight = nullptr;        // [rows]; null: 1
  // No token has two rows: plain sums, the same in every run. Else rows of a token are added in any
  // order, each time rounding to bf16.
  bool tokens_are_unique = false;
};

}  // namespace orrery

#pragma once

// Where the rows of a grouped gemm go that are added to those of their tokens as they leave the
// tensor cores: grouped_gemm and scatter_add in one, without y.

#include <cstdint>

#include "kernels/cuda/dtypes.h"

namespace orrery {

// out[row_token[row], :] += row_weight[row] y[row, :], with y rounded to bf16; n is a multiple
// of 8.
struct ScatterTarget {
  bf16* out = nullptr;                      // [tokens, n], 16-byte aligned
  const std::int32_t* row_token = nullptr;  // [rows]
  const float* row_weight = nullptr;        // [rows]; null: 1
  // No token has two rows: plain sums, the same in every run. Else weighed rows are rounded to bf16
  // and added in any order, and each sum is rounded.
  bool tokens_are_unique = false;
};

}  // namespace orrery

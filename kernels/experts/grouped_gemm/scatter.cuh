#pragma once

// grouped_gemm_scatter's epilogue: eight columns of a row of y to its token.

#include "kernels/cuda/vector.cuh"
#include "kernels/experts/grouped_gemm/scatter.h"

namespace orrery {

// Where a row goes and what it is multiplied by; for all its columns.
struct ScatterRow {
  bf16* out;  // the token's first column
  float weight;
};
__device__ inline ScatterRow scatter_row(const ScatterTarget& target, std::int64_t row,
                                         std::int64_t n) {
  return {target.out + static_cast<std::int64_t>(target.row_token[row]) * n,
          target.row_weight == nullptr ? 1.0f : target.row_weight[row]};
}

// Adds weight * y to columns [column, column + 8) of the row's token; column is a multiple of 8 and
// out 16-byte aligned. y are values that have been rounded to bf16: what grouped_gemm and
// scatter_add one after the other would add.
__device__ inline void scatter_vector(const ScatterTarget& target, const ScatterRow& row,
                                      int column, const uint4& y) {
  float values[kVectorSize];
  unpack(y, values);
  bf16* const out = row.out + column;
  if (target.tokens_are_unique) {
    float sums[kVectorSize];
    unpack(load_once(out), sums);
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) sums[i] = fmaf(row.weight, values[i], sums[i]);
    store(out, pack(sums));
  } else {
#pragma unroll
    for (int i = 0; i < kVectorSize; ++i) values[i] *= row.weight;
    const uint4 addend = pack(values);
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(out),
                 "r"(addend.x), "r"(addend.y), "r"(addend.z), "r"(addend.w)
                 : "memory");
  }
}

}  // namespace orrery

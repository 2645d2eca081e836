#pragma once

// grouped_gemm_scatter in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/experts/grouped_gemm/reference.h"

namespace orrery::reference {

// Where rows go: out[tokens[row], :] += weights[row] y[row, :].
struct ScatterRows {
  std::span<const std::int32_t> tokens;  // [max_rows]
  std::span<const double> weights;       // [max_rows]; empty: all 1
};

// Adds the rows of grouped_gemm (its arguments) to those of `out` [tokens, n]. Rows past the sum of
// counts add nothing. Throws std::invalid_argument when sizes do not fit or a row's token is
// outside of out.
void grouped_gemm_scatter(std::span<const double> x, std::span<const double> w,
                          std::span<const std::int32_t> counts, std::int64_t n, std::int64_t k,
                          const ScatterRows& rows, std::span<double> out,
                          const GroupedGemmScales& scales = {});

}  // namespace orrery::reference

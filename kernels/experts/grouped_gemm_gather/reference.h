#pragma once

// grouped_gemm_gather in double.

#include <cstdint>
#include <span>

namespace orrery::reference {

// Which tokens' rows are multiplied, and what by besides.
struct GatheredRows {
  std::span<const std::int32_t> tokens;  // [max_rows]
  std::span<const double> weights;       // [max_rows]; empty: all 1
};

// y[max_rows, n] of the rows weights[row] x[tokens[row], :] of x [num_tokens, k], as grouped_gemm
// (its other arguments); zeros of x for a token that is not there. Throws std::invalid_argument
// when sizes do not fit.
void grouped_gemm_gather(std::span<const double> x, const GatheredRows& rows,
                         std::span<const double> w, std::span<const std::int32_t> counts,
                         std::int64_t n, std::int64_t k, std::span<double> y);

}  // namespace orrery::reference

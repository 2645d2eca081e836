#pragma once

// gemm in double.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// The scales of quantised operands: none (all 1), one for the whole operand, or one per row.
struct GemmScales {
  std::span<const double> x;  // 0, 1 or m values
  std::span<const double> w;  // 0, 1 or n values
};

// y[m, n] = (x_scale x[m, k]) (w_scale w[n, k])^T, all row-major. Throws std::invalid_argument when
// a size does not fit.
std::vector<double> gemm(std::span<const double> x, std::span<const double> w, std::int64_t m,
                         std::int64_t n, std::int64_t k, const GemmScales& scales = {});

// Adds bias[n] to each row of y[.., n]. Throws std::invalid_argument when y is not whole rows.
void add_bias(std::span<double> y, std::span<const double> bias);

}  // namespace orrery::reference

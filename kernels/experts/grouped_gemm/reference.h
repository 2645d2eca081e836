#pragma once

// grouped_gemm in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

// One scale per row of x and per row of every w; empty for none.
struct GroupedGemmScales {
  std::span<const double> x;  // [max_rows]
  std::span<const double> w;  // [groups, n]
};

// y[max_rows, n] with y[row] = x[row, k] w[group of the row][n, k]^T: the first counts[0] rows are
// of group 0, and so on. Negative counts are 0; rows past their sum keep what `y` holds, rows past
// max_rows are dropped. Throws std::invalid_argument when sizes do not fit.
void grouped_gemm(std::span<const double> x, std::span<const double> w,
                  std::span<const std::int32_t> counts, std::int64_t n, std::int64_t k,
                  std::span<double> y, const GroupedGemmScales& scales = {});

// What an op of grouped rows multiplies, x [rows, k] by w: y [rows, n], zeros past the groups'
// rows.
Values multiplied(const KernelCall& call);

}  // namespace orrery::reference

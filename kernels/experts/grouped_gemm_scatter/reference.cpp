#include "kernels/experts/grouped_gemm_scatter/reference.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/binding/kernel_call.h"
#include "kernels/experts/grouped_gemm/reference.h"

namespace orrery::reference {

void grouped_gemm_scatter(std::span<const double> x, std::span<const double> w,
                          std::span<const std::int32_t> counts, std::int64_t n, std::int64_t k,
                          const ScatterRows& rows, std::span<double> out,
                          const GroupedGemmScales& scales) {
  const auto max_rows = static_cast<std::int64_t>(x.size()) / k;
  if (std::ssize(rows.tokens) != max_rows ||
      (!rows.weights.empty() && std::ssize(rows.weights) != max_rows)) {
    throw std::invalid_argument("grouped_gemm_scatter: tokens or weights of rows are not " +
                                std::to_string(max_rows));
  }
  std::vector<double> y(static_cast<std::size_t>(max_rows * n));
  grouped_gemm(x, w, counts, n, k, y, scales);
  std::int64_t num_rows = 0;
  for (const std::int64_t count : counts) {
    num_rows += std::clamp<std::int64_t>(count, 0, max_rows - num_rows);
  }
  const std::int64_t num_tokens = std::ssize(out) / n;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t token = rows.tokens[static_cast<std::size_t>(row)];
    if (token < 0 || token >= num_tokens) {
      throw std::invalid_argument("grouped_gemm_scatter: row " + std::to_string(row) +
                                  " is of token " + std::to_string(token) + ", there are " +
                                  std::to_string(num_tokens));
    }
    const double weight = rows.weights.empty() ? 1 : rows.weights[static_cast<std::size_t>(row)];
    for (std::int64_t column = 0; column < n; ++column) {
      out[static_cast<std::size_t>(token * n + column)] +=
          weight * y[static_cast<std::size_t>(row * n + column)];
    }
  }
}

Results grouped_gemm_scatter_reference(const KernelCall& call) {
  const std::int64_t n = size_of(call, "n");
  const Values y = multiplied(call);
  const std::vector<std::int32_t> counts = integers_read(call, "counts");
  const auto num_rows = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::vector<std::int32_t> tokens = integers_read(call, "row_token");
  const Values weights = optional_read(call, "row_weight");
  Values out = read(call, "base");
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const double weight = weights.empty() ? 1 : weights[static_cast<std::size_t>(row)];
    const std::int64_t token = tokens[static_cast<std::size_t>(row)];
    for (std::int64_t column = 0; column < n; ++column) {
      out[static_cast<std::size_t>(token * n + column)] +=
          weight * y[static_cast<std::size_t>(row * n + column)];
    }
  }
  return {std::move(out)};
}

}  // namespace orrery::reference

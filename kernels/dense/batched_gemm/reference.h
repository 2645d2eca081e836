#pragma once

// batched_gemm in double.

#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

struct BatchedGemmSize {
  std::int64_t batch = 0;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool w_is_transposed = false;  // w is [batch, k, n], else [batch, n, k]
  bool is_by_matrix = false;     // x and y are [batch, m, ...], else [m, batch, ...]
};

// y[m, batch, n] = x[m, batch, k] w[batch]^T for each of the batch, or with the batch first. Throws
// std::invalid_argument when a size does not fit.
std::vector<double> batched_gemm(std::span<const double> x, std::span<const double> w,
                                 const BatchedGemmSize& size);

}  // namespace orrery::reference

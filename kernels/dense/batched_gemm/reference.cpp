#include "kernels/dense/batched_gemm/reference.h"

#include <stdexcept>

#include "kernels/dense/gemm/reference.h"

namespace orrery::reference {

std::vector<double> batched_gemm(std::span<const double> x, std::span<const double> w,
                                 const BatchedGemmSize& size) {
  const auto [batch, m, n, k, w_is_transposed, is_by_matrix] = size;
  // Where a row of a head lies, in rows.
  const auto row_of = [batch = batch, m = m, by_matrix = is_by_matrix](std::int64_t head,
                                                                       std::int64_t row) {
    return by_matrix ? head * m + row : row * batch + head;
  };
  if (std::ssize(x) != batch * m * k || std::ssize(w) != batch * n * k) {
    throw std::invalid_argument("batched_gemm: x or w is not of the batch, m, n and k given");
  }
  std::vector<double> y(static_cast<std::size_t>(batch * m * n));
  std::vector<double> head_x(static_cast<std::size_t>(m * k));
  std::vector<double> head_w(static_cast<std::size_t>(n * k));
  for (std::int64_t head = 0; head < batch; ++head) {
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t i = 0; i < k; ++i) head_x[row * k + i] = x[row_of(head, row) * k + i];
    }
    for (std::int64_t column = 0; column < n; ++column) {
      for (std::int64_t i = 0; i < k; ++i) {
        head_w[column * k + i] =
            w[head * n * k + (w_is_transposed ? i * n + column : column * k + i)];
      }
    }
    const std::vector<double> head_y = gemm(head_x, head_w, m, n, k);
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        y[row_of(head, row) * n + column] = head_y[row * n + column];
      }
    }
  }
  return y;
}

}  // namespace orrery::reference

#include "kernels/dense/batched_gemm/reference.h"

#include <stdexcept>
#include <utility>

#include "kernels/binding/kernel_call.h"
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

namespace {

// The first k elements of each head of the last m rows, by weights as they expand latents or, as
// wide as the result, from the other side.
Results multiply_heads(const KernelCall& call) {
  const std::int64_t batch = size_of(call, "batch");
  const std::int64_t m = size_of(call, "m");
  const std::int64_t k = size_of(call, "k");
  const std::int64_t stride = columns_read(call, "x");
  const bool skips_prefill = tensor_read(call, "x").axes.front().size > m;
  const std::int64_t first = skips_prefill ? call.part.rows.prefill : 0;
  const auto rows = std::span(read(call, "x")).subspan(first * stride, m * stride);
  const BatchedGemmSize size{.batch = batch,
                             .m = m,
                             .n = size_of(call, "n"),
                             .k = k,
                             .w_is_transposed = columns_read(call, "w") == size_of(call, "n")};
  return {batched_gemm(columns_of(rows, stride / batch, 0, k), read(call, "w"), size)};
}

}  // namespace

// x [batch, m, k], w [batch, n, k]
Results batched_gemm_reference(const KernelCall& call) {
  if (tensor_read(call, "x").axes.size() == 2) return multiply_heads(call);
  const std::int64_t m = size_of(call, "m");
  const std::int64_t n = size_of(call, "n");
  const std::int64_t k = size_of(call, "k");
  const std::span<const double> x = read(call, "x");
  const std::span<const double> w = read(call, "w");
  Values result;
  for (std::int64_t i = 0; i < size_of(call, "batch"); ++i) {
    const Values y = gemm(x.subspan(static_cast<std::size_t>(i * m * k), m * k),
                          w.subspan(static_cast<std::size_t>(i * n * k), n * k), m, n, k);
    result.insert(result.end(), y.begin(), y.end());
  }
  return {std::move(result)};
}

}  // namespace orrery::reference

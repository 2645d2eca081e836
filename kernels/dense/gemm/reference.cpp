#include "kernels/dense/gemm/reference.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {
namespace {

// Four sums, so that the compiler may use vectors.
double dot(const double* a, const double* b, std::int64_t count) {
  constexpr int kSums = 4;
  double sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int lane = 0; lane < kSums; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double scale_of(std::span<const double> scales, std::int64_t row) {
  if (scales.empty()) return 1;
  return scales.size() == 1 ? scales[0] : scales[row];
}

void require_size(std::size_t found, std::int64_t expected, const std::string& what) {
  if (found != static_cast<std::size_t>(expected)) {
    throw std::invalid_argument(what + " has " + std::to_string(found) + " values, expected " +
                                std::to_string(expected));
  }
}

void require_scales(std::size_t found, std::int64_t rows, const std::string& what) {
  if (found > 1) require_size(found, rows, what);
}

}  // namespace

std::vector<double> gemm(std::span<const double> x, std::span<const double> w, std::int64_t m,
                         std::int64_t n, std::int64_t k, const GemmScales& scales) {
  require_size(x.size(), m * k, "x");
  require_size(w.size(), n * k, "w");
  require_scales(scales.x.size(), m, "the scale of x");
  require_scales(scales.w.size(), n, "the scale of w");
  std::vector<double> y(static_cast<std::size_t>(m * n));
  for (std::int64_t column = 0; column < n; ++column) {
    const double w_scale = scale_of(scales.w, column);
    for (std::int64_t row = 0; row < m; ++row) {
      y[row * n + column] = scale_of(scales.x, row) * w_scale * dot(&x[row * k], &w[column * k], k);
    }
  }
  return y;
}

void add_bias(std::span<double> y, std::span<const double> bias) {
  if (!y.empty() && (bias.empty() || y.size() % bias.size() != 0)) {
    throw std::invalid_argument("add_bias: y is not whole rows of the bias");
  }
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
}

Results gemm_reference(const KernelCall& call) {
  const std::int64_t m = size_of(call, "m");
  const std::int64_t n = size_of(call, "n");
  const std::int64_t k = size_of(call, "k");
  Values y = gemm(rows_read(call, "x", m, k), read(call, "w"), m, n, k);
  const Values bias = optional_read(call, "bias");
  if (!bias.empty()) add_bias(y, bias);
  return {std::move(y)};
}

}  // namespace orrery::reference

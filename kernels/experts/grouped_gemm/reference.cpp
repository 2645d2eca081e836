#include "kernels/experts/grouped_gemm/reference.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/binding/kernel_call.h"
#include "kernels/dense/gemm/reference.h"

namespace orrery::reference {
namespace {

void require_size(std::size_t found, std::int64_t expected, const std::string& what) {
  if (found != static_cast<std::size_t>(expected)) {
    throw std::invalid_argument(what + " has " + std::to_string(found) + " values, expected " +
                                std::to_string(expected));
  }
}

}  // namespace

void grouped_gemm(std::span<const double> x, std::span<const double> w,
                  std::span<const std::int32_t> counts, std::int64_t n, std::int64_t k,
                  std::span<double> y, const GroupedGemmScales& scales) {
  const auto groups = static_cast<std::int64_t>(counts.size());
  const std::int64_t max_rows = static_cast<std::int64_t>(x.size()) / k;
  require_size(x.size(), max_rows * k, "x");
  require_size(w.size(), groups * n * k, "w");
  require_size(y.size(), max_rows * n, "y");
  if (!scales.x.empty()) require_size(scales.x.size(), max_rows, "the scale of x");
  if (!scales.w.empty()) require_size(scales.w.size(), groups * n, "the scale of w");
  std::int64_t row = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t count =
        std::clamp<std::int64_t>(counts[static_cast<std::size_t>(group)], 0, max_rows - row);
    if (count == 0) continue;
    // A single scale would be taken for all of a gemm's rows, which here it is.
    const GemmScales of_group{.x = scales.x.empty() ? scales.x : scales.x.subspan(row, count),
                              .w = scales.w.empty() ? scales.w : scales.w.subspan(group * n, n)};
    const std::vector<double> part =
        gemm(x.subspan(row * k, count * k), w.subspan(group * n * k, n * k), count, n, k, of_group);
    std::ranges::copy(part, y.begin() + row * n);
    row += count;
  }
}

Values multiplied(const KernelCall& call) {
  const std::int64_t n = size_of(call, "n");
  const Tensor& x = tensor_read(call, "x");
  Values y(static_cast<std::size_t>(num_elements(x) / x.axes.back().size * n));
  grouped_gemm(read(call, "x"), read(call, "w"), integers_read(call, "counts"), n,
               size_of(call, "k"), y);
  return y;
}

Results grouped_gemm_reference(const KernelCall& call) { return {multiplied(call)}; }

}  // namespace orrery::reference

#include "kernels/dense/quantize/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/binding/kernel_call.h"
#include "kernels/harness/rounding.h"

namespace orrery::reference {
namespace {

constexpr double kFp8Most = 448;

std::size_t group_of(std::size_t element, std::size_t columns, std::size_t group) {
  return element / columns * ((columns + group - 1) / group) + element % columns / group;
}

}  // namespace

std::vector<double> quantize_scales(std::span<const double> x, std::size_t columns,
                                    std::size_t group) {
  if (columns == 0 || group == 0 || x.size() % columns != 0) {
    throw std::invalid_argument("quantize: x is not whole rows of groups");
  }
  std::vector<double> scales(x.size() / columns * ((columns + group - 1) / group));
  for (std::size_t i = 0; i < x.size(); ++i) {
    double& scale = scales[group_of(i, columns, group)];
    scale = std::max(scale, std::abs(x[i]) / kFp8Most);
  }
  return scales;
}

std::vector<double> quantize(std::span<const double> x, std::span<const double> scales,
                             std::size_t columns, std::size_t group) {
  std::vector<double> values(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double scale = scales[group_of(i, columns, group)];
    values[i] = scale == 0 ? 0 : round_fp8(x[i] / scale) * scale;
  }
  return values;
}

Values rounded(Values values, const Tensor& tensor, Rounding rounding) {
  if (rounding == Rounding::kNone) return values;
  if (tensor.dtype == DType::kBf16) return round_bf16(values);
  if (tensor.dtype != DType::kFp8) return values;
  const auto columns = static_cast<std::size_t>(tensor.axes.back().size);
  return quantize(values, quantize_scales(values, columns, columns), columns, columns);
}

// Rounding is that of the tensor which is written.
Results quantize_reference(const KernelCall& call) {
  return {rows_read(call, "x", size_of(call, "tokens"), size_of(call, "hidden"))};
}

}  // namespace orrery::reference

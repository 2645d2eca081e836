#include "kernels/rows/residual_add/reference.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::vector<double> residual_add(std::span<const double> residual, std::span<const double> x) {
  if (residual.size() != x.size()) {
    throw std::invalid_argument("residual and x have different sizes");
  }
  std::vector<double> sum(x.size());
  std::ranges::transform(residual, x, sum.begin(), std::plus{});
  return sum;
}

Results residual_add_reference(const KernelCall& call) {
  return {residual_add(read(call, "residual"), read(call, "x"))};
}

}  // namespace orrery::reference

#include "kernels/rows/silu_mul/reference.h"

#include <cmath>
#include <stdexcept>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::vector<double> silu_mul(std::span<const double> x, std::size_t ffn) {
  if (ffn == 0 || x.size() % (2 * ffn) != 0) {
    throw std::invalid_argument("silu_mul: x is not whole rows of 2 ffn");
  }
  std::vector<double> y(x.size() / 2);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t at = i / ffn * 2 * ffn + i % ffn;
    y[i] = x[at] / (1 + std::exp(-x[at])) * x[at + ffn];
  }
  return y;
}

Results silu_mul_reference(const KernelCall& call) {
  return {silu_mul(read(call, "x"), static_cast<std::size_t>(size_of(call, "ffn")))};
}

}  // namespace orrery::reference

#include "kernels/rows/rms_norm/reference.h"

#include <cmath>
#include <numeric>
#include <stdexcept>

namespace orrery::reference {

std::vector<double> rms_norm(std::span<const double> x, std::span<const double> weight,
                             double epsilon) {
  const std::size_t hidden = weight.size();
  if (hidden == 0 || x.size() % hidden != 0) {
    throw std::invalid_argument("rms_norm: x is not whole rows of weight's length");
  }
  std::vector<double> y(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += hidden) {
    const auto row = x.subspan(begin, hidden);
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    const double rms = std::sqrt(squares / static_cast<double>(hidden) + epsilon);
    for (std::size_t i = 0; i < hidden; ++i) y[begin + i] = row[i] / rms * weight[i];
  }
  return y;
}

}  // namespace orrery::reference

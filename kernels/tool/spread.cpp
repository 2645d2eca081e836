#include "kernels/tool/spread.h"

#include <algorithm>
#include <cstddef>

namespace orrery::tool {

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = [&](double quantile) {
    const double place = quantile * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {.median = at(0.5), .relative = (at(0.75) - at(0.25)) / at(0.5)};
}

}  // namespace orrery::tool

#include "kernels/attention/rope/reference.h"

#include <cmath>

namespace orrery::reference {

RopeTables rope_tables(std::size_t positions, std::size_t rotary_dim, double base) {
  const std::size_t half = rotary_dim / 2;
  RopeTables tables{.cosines = std::vector<float>(positions * half),
                    .sines = std::vector<float>(positions * half)};
  for (std::size_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    for (std::size_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      tables.cosines[position * half + i] = static_cast<float>(std::cos(angle));
      tables.sines[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return tables;
}

std::vector<double> rope(std::span<const double> x, std::span<const std::int32_t> positions,
                         const RopeTables& tables, const RopeLayout& layout) {
  std::vector<double> y(x.begin(), x.end());
  const std::size_t half = layout.rotary_dim / 2;
  for (std::size_t head = 0; head < positions.size() * layout.heads; ++head) {
    const std::size_t row = static_cast<std::size_t>(positions[head / layout.heads]) * half;
    for (std::size_t pair = 0; pair < half; ++pair) {
      const double cosine = tables.cosines[row + pair];
      const double sine = tables.sines[row + pair];
      const std::size_t first = head * layout.head_dim;
      const std::size_t low = first + (layout.interleaved ? 2 * pair : pair);
      const std::size_t high = layout.interleaved ? low + 1 : low + half;
      y[low] = x[low] * cosine - x[high] * sine;
      y[high] = x[high] * cosine + x[low] * sine;
    }
  }
  return y;
}

}  // namespace orrery::reference

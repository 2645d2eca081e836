#include "kernels/calibrate/points.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace orrery::calibrate {
namespace {

const GridAxis& axis_of(const KernelSpec& spec, const Grid& grid, std::string_view dim) {
  const auto found = std::ranges::find(grid.axes, dim, &GridAxis::dim);
  if (found == grid.axes.end()) {
    throw std::invalid_argument("the grid of " + std::string(spec.name) + " lacks dim '" +
                                std::string(dim) + "'");
  }
  const auto& values = found->values;
  if (values.empty() || std::ranges::adjacent_find(values, std::greater_equal{}) != values.end()) {
    throw std::invalid_argument("the grid of " + std::string(spec.name) +
                                " needs ascending values of '" + std::string(dim) + "'");
  }
  return *found;
}

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): uniform in [0, 1).
double uniform(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

}  // namespace

std::int64_t multiple_of(const GridAxis& axis) {
  constexpr std::int64_t kMost =
      128;  // of which models' columns are multiples, with few exceptions
  if (axis.multiple > 0) return axis.multiple;
  std::int64_t common = 0;
  for (const std::int64_t value : axis.values) common = std::gcd(common, value);
  return std::max<std::int64_t>(1, std::gcd(common, kMost));
}

std::optional<std::int64_t> midpoint(std::int64_t low, std::int64_t high, std::int64_t multiple) {
  const double mean = std::sqrt(static_cast<double>(low) * static_cast<double>(high));
  const std::int64_t first = low / multiple * multiple + multiple;
  const std::int64_t last = (high - 1) / multiple * multiple;
  if (low < 1 || first > last) return std::nullopt;
  const std::int64_t nearest = std::llround(mean / static_cast<double>(multiple)) * multiple;
  return std::clamp(nearest, first, last);
}

std::vector<std::int64_t> thinned(const std::vector<std::int64_t>& values, int level) {
  std::vector<std::int64_t> kept;
  for (std::size_t i = 0; i < values.size(); i += std::size_t{1} << level) {
    kept.push_back(values[i]);
  }
  if (kept.back() != values.back()) kept.push_back(values.back());
  return kept;
}

std::vector<CoarsePoint> coarse_points(const KernelSpec& spec, const Grid& grid) {
  if (grid.axes.size() != spec.dims.size()) {
    throw std::invalid_argument("the grid of " + std::string(spec.name) + " has " +
                                std::to_string(grid.axes.size()) + " axes; expected " +
                                std::to_string(spec.dims.size()));
  }
  std::vector<CoarsePoint> points{
      {.op = {.kernel = std::string(spec.name), .dtype = grid.dtype, .dims = {}},
       .level = kMaxLevel}};
  for (const DimSpec& dim : spec.dims) {
    const GridAxis& axis = axis_of(spec, grid, dim.name);
    std::vector<CoarsePoint> longer;
    for (const CoarsePoint& point : points) {
      for (const std::int64_t value : axis.values) {
        CoarsePoint next = point;
        next.op.dims.push_back({.name = std::string(dim.name), .size = value, .axis = {}});
        while (!std::ranges::binary_search(thinned(axis.values, next.level), value)) --next.level;
        longer.push_back(std::move(next));
      }
    }
    points = std::move(longer);
  }
  if (grid.accept != nullptr) {
    std::erase_if(points, [&](const CoarsePoint& point) { return !grid.accept(point.op.dims); });
  }
  std::ranges::stable_sort(points, std::greater{}, &CoarsePoint::level);
  return points;
}

KernelOp random_point(const KernelSpec& spec, const Grid& grid,
                      const std::function<bool(std::string_view)>& is_axis, std::uint64_t index) {
  KernelOp op{.kernel = std::string(spec.name), .dtype = grid.dtype, .dims = {}};
  std::uint64_t state = index * 0xD1342543DE82EF95ULL;
  for (const DimSpec& dim : spec.dims) {
    const GridAxis& axis = axis_of(spec, grid, dim.name);
    const auto low = static_cast<double>(axis.values.front());
    const auto high = static_cast<double>(axis.values.back());
    const double draw = uniform(state);
    std::int64_t value =
        axis.values[static_cast<std::size_t>(draw * static_cast<double>(axis.values.size()))];
    if (is_axis(dim.name) && low > 0) {
      const std::int64_t multiple = multiple_of(axis);
      const double wanted = low * std::pow(high / low, draw);
      value = std::llround(wanted / static_cast<double>(multiple)) * multiple;
      value = std::clamp(value, axis.values.front(), axis.values.back());
    }
    op.dims.push_back({.name = std::string(dim.name), .size = value, .axis = {}});
  }
  return op;
}

}  // namespace orrery::calibrate

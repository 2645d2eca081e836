#pragma once

// Points of calibration grids: the coarse ones, those between two, and random ones. No CUDA.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "kernels/harness/grid.h"
#include "kernels/kernel_spec.h"
#include "sim/plan/plan.h"

namespace orrery::calibrate {

// Of what points of this axis must be multiples.
std::int64_t multiple_of(const GridAxis& axis);

// The multiple of `multiple` strictly between low and high that is nearest to their geometric mean;
// empty when there is none.
std::optional<std::int64_t> midpoint(std::int64_t low, std::int64_t high, std::int64_t multiple);

// Every 2^level-th value, the last one always.
std::vector<std::int64_t> thinned(const std::vector<std::int64_t>& values, int level);

// Reorders in strides of about the golden section, so that any beginning covers the whole: where
// the time runs out, holes then have measured points around them.
template <typename Point>
void scatter(std::span<Point> points) {
  constexpr double kGoldenSection = 0.618;
  const std::size_t count = points.size();
  auto stride = static_cast<std::size_t>(kGoldenSection * static_cast<double>(count)) + 1;
  while (std::gcd(stride, count) > 1) ++stride;
  std::vector<Point> order;
  order.reserve(count);
  for (std::size_t i = 0; i < count; ++i) order.push_back(std::move(points[i * stride % count]));
  std::ranges::move(order, points.begin());
}

struct CoarsePoint {
  KernelOp op;
  int level = 0;  // the greatest level at which every dim is among the thinned values
};
inline constexpr int kMaxLevel = 3;

// The product of the grid's axes that accept() takes, dims in the order of the spec, points of a
// higher level first: any beginning of the list spans the whole range. Throws std::invalid_argument
// when the axes are not the dims of the spec or hold no ascending values.
std::vector<CoarsePoint> coarse_points(const KernelSpec& spec, const Grid& grid);

// A random call inside the grid: dims for which `is_axis` is log-uniform between the axis' ends,
// others one of the axis' values. Equal for equal `index`. May be one that accept() refuses.
KernelOp random_point(const KernelSpec& spec, const Grid& grid,
                      const std::function<bool(std::string_view)>& is_axis, std::uint64_t index);

}  // namespace orrery::calibrate

#include "kernels/calibrate/refine.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/calibrate/points.h"
#include "kernels/calibrate/row.h"
#include "sim/cost/kernel_table.h"
#include "sim/cost/roofline.h"

namespace orrery::calibrate {
namespace {

// Second derivative assumed where a line has no inner point, per octave squared: an error of 2 % in
// the middle of an octave.
constexpr double kUnknownCurvature = 0.16;

double octaves(std::int64_t low, std::int64_t high) {
  return std::log2(static_cast<double>(high) / static_cast<double>(low));
}

using Line = std::vector<std::pair<std::int64_t, double>>;  // ascending

// Second derivative at point i of a line, or at the nearest inner one.
double curvature(const Line& line, std::size_t i) {
  if (line.size() < 3) return kUnknownCurvature;
  i = std::clamp<std::size_t>(i, 1, line.size() - 2);
  const double before = octaves(line[i - 1].first, line[i].first);
  const double after = octaves(line[i].first, line[i + 1].first);
  const double slope_before = (line[i].second - line[i - 1].second) / before;
  const double slope_after = (line[i + 1].second - line[i].second) / after;
  return std::abs(slope_after - slope_before) * 2 / (before + after);
}

}  // namespace

Refiner::Refiner(const KernelSpec& spec, std::span<const Grid> grids, const Device& device)
    : spec_(spec), grids_(grids), device_(device), is_axis_(spec.dims.size()) {
  const GridLayout layout = grid_layout(spec);
  for (int a = 0; a < layout.num_axes; ++a) is_axis_[layout.axes[a]] = true;
}

bool Refiner::is_axis(std::string_view dim) const {
  const auto found = std::ranges::find(spec_.dims, dim, &DimSpec::name);
  return found != spec_.dims.end() && is_axis_[found - spec_.dims.begin()];
}

Refiner::Sizes Refiner::sizes_of(const KernelOp& op) const {
  Sizes sizes;
  for (const DimSpec& dim : spec_.dims) sizes.push_back(orrery::dim(op.dims, dim.name));
  return sizes;
}

KernelOp Refiner::op_of(const Family& family, const Sizes& sizes) const {
  KernelOp op{.kernel = std::string(spec_.name), .dtype = family.grid->dtype, .dims = {}};
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    op.dims.push_back({.name = std::string(spec_.dims[d].name), .size = sizes[d], .axis = {}});
  }
  return op;
}

void Refiner::add(const KernelOp& op, Seconds time) {
  const Seconds model = work_model_time(spec_.prior, work_of(op),
                                        peak_flops(device_, arithmetic_dtype(spec_, op.dtype)),
                                        device_.hbm_bandwidth);
  const double log_ratio = std::log(time / model);
  insert(op, &log_ratio);
}

void Refiner::refuse(const KernelOp& op) {
  refused_.insert(op_text(op));
  insert(op, nullptr);
}

// Into each grid that spans the point. Dims that are no axes take the values that the grid lists.
void Refiner::insert(const KernelOp& op, const double* log_ratio) {
  const Sizes sizes = sizes_of(op);
  for (const Grid& grid : grids_) {
    Sizes family_dims = sizes;
    bool is_inside = grid.dtype == op.dtype && (grid.accept == nullptr || grid.accept(op.dims));
    for (std::size_t d = 0; is_inside && d < sizes.size(); ++d) {
      const auto axis = std::ranges::find(grid.axes, spec_.dims[d].name, &GridAxis::dim);
      const std::vector<std::int64_t>& values = axis->values;
      is_inside = is_axis_[d] ? values.front() <= sizes[d] && sizes[d] <= values.back()
                              : std::ranges::binary_search(values, sizes[d]);
      if (is_axis_[d]) family_dims[d] = 0;
    }
    if (!is_inside) continue;
    Family& family = families_[{&grid, family_dims}];
    family.grid = &grid;
    family.dims = sizes;
    family.values.resize(sizes.size());
    for (std::size_t d = 0; d < sizes.size(); ++d) family.values[d].insert(sizes[d]);
    if (log_ratio != nullptr) family.log_ratio[sizes] = *log_ratio;
  }
}

std::vector<KernelOp> Refiner::missing(const Family& family,
                                       const std::vector<std::set<std::int64_t>>& values) const {
  std::vector<Sizes> product{{}};
  for (const std::set<std::int64_t>& of_dim : values) {
    std::vector<Sizes> longer;
    for (const Sizes& sizes : product) {
      for (const std::int64_t value : of_dim) {
        longer.push_back(sizes);
        longer.back().push_back(value);
      }
    }
    product = std::move(longer);
  }
  std::vector<KernelOp> found;
  for (const Sizes& sizes : product) {
    if (family.log_ratio.contains(sizes)) continue;
    KernelOp op = op_of(family, sizes);
    const bool is_accepted = family.grid->accept == nullptr || family.grid->accept(op.dims);
    if (is_accepted && !refused_.contains(op_text(op))) found.push_back(std::move(op));
  }
  return found;
}

// Mean over the lines along `axis` that were measured at both ends of the interval.
double Refiner::expected_error(const Family& family, std::size_t axis, std::int64_t low,
                               std::int64_t middle, std::int64_t high) const {
  std::map<Sizes, Line> lines;
  for (const auto& [sizes, ratio] : family.log_ratio) {
    Sizes others = sizes;
    others[axis] = 0;
    lines[std::move(others)].emplace_back(sizes[axis], ratio);
  }
  double sum = 0;
  int count = 0;
  for (const auto& [others, line] : lines) {
    const auto at = std::ranges::find(line, low, &Line::value_type::first);
    if (at == line.end() || std::next(at) == line.end() || std::next(at)->first != high) continue;
    const auto i = static_cast<std::size_t>(at - line.begin());
    // The error of the straight line at the candidate is h1 h2 / 2 of the second derivative. What
    // bends inside the interval, smoothly or in a step, shows at both its ends; what shows at one
    // alone bends beyond it.
    sum += std::sqrt(curvature(line, i) * curvature(line, i + 1)) * octaves(low, middle) *
           octaves(middle, high) / 2;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

Plane Refiner::next(double least_error) const {
  Plane best;
  for (const auto& [key, family] : families_) {
    for (KernelOp& op : missing(family, family.values)) best.points.push_back(std::move(op));
  }
  if (!best.points.empty()) return best;
  double best_gain = 0;
  for (const auto& [key, family] : families_) {
    for (std::size_t axis = 0; axis < is_axis_.size(); ++axis) {
      const std::set<std::int64_t>& values = family.values[axis];
      if (!is_axis_[axis] || values.size() < 2 || *values.begin() < 1) continue;
      const std::int64_t multiple =
          multiple_of(*std::ranges::find(family.grid->axes, spec_.dims[axis].name, &GridAxis::dim));
      const double whole = octaves(*values.begin(), *values.rbegin());
      for (auto low = values.begin(); std::next(low) != values.end(); ++low) {
        const std::int64_t high = *std::next(low);
        const std::optional<std::int64_t> middle = midpoint(*low, high, multiple);
        if (!middle) continue;
        const double error = expected_error(family, axis, *low, *middle, high);
        if (error < least_error) continue;
        std::vector<std::set<std::int64_t>> plane = family.values;
        plane[axis] = {*middle};
        std::vector<KernelOp> points = missing(family, plane);
        if (points.empty()) continue;
        // A random call lies in the interval with probability h / whole.
        const double gain =
            error * octaves(*low, high) / whole / static_cast<double>(points.size());
        if (gain > best_gain) {
          best_gain = gain;
          scatter(std::span(points));
          best = {.points = std::move(points), .error = error};
        }
      }
    }
  }
  return best;
}

}  // namespace orrery::calibrate

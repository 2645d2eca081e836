#include "kernels/calibrate/refine.h"

#include <algorithm>
#include <cmath>

#include "kernels/calibrate/points.h"
#include "kernels/calibrate/row.h"
#include "sim/cost/kernel_table.h"
#include "sim/cost/roofline.h"

namespace orrery::calibrate {
namespace {

// Second derivative assumed where a line has no inner point, per octave squared: an error of 2 % in
// the middle of an octave.
constexpr double kUnknownCurvature = 0.16;
// What remains of an error when the same place was measured on a neighbouring line: holes of the
// grid are filled from there.
constexpr double kKnownNextDoor = 0.5;

double octaves(std::int64_t low, std::int64_t high) {
  return std::log2(static_cast<double>(high) / static_cast<double>(low));
}

}  // namespace

// Points that differ in one dim only, ascending.
struct Refiner::Line {
  DType dtype = DType::kBf16;
  std::size_t axis = 0;  // of the spec's dims
  Sizes dims;            // of the first point
  std::vector<std::pair<std::int64_t, double>> points;

  // Second derivative at point i, or at the nearest inner one.
  [[nodiscard]] double curvature(std::size_t i) const {
    if (points.size() < 3) return kUnknownCurvature;
    i = std::clamp<std::size_t>(i, 1, points.size() - 2);
    const double before = octaves(points[i - 1].first, points[i].first);
    const double after = octaves(points[i].first, points[i + 1].first);
    const double slope_before = (points[i].second - points[i - 1].second) / before;
    const double slope_after = (points[i + 1].second - points[i].second) / after;
    return std::abs(slope_after - slope_before) * 2 / (before + after);
  }
};

Refiner::Refiner(const KernelSpec& spec, std::span<const Grid> grids, const Device& device)
    : spec_(spec), grids_(grids), device_(device), is_axis_(spec.dims.size()) {
  const GridLayout layout = grid_layout(spec);
  for (int a = 0; a < layout.num_axes; ++a) is_axis_[layout.axes[a]] = true;
}

bool Refiner::is_axis(std::string_view dim) const {
  const auto found = std::ranges::find(spec_.dims, dim, &DimSpec::name);
  return found != spec_.dims.end() && is_axis_[found - spec_.dims.begin()];
}

void Refiner::add(const KernelOp& op, Seconds time) {
  Sizes sizes;
  for (const DimSpec& dim : spec_.dims) sizes.push_back(orrery::dim(op.dims, dim.name));
  const Seconds model = work_model_time(work_model(spec_.name), work_of(op),
                                        peak_flops(device_, arithmetic_dtype(spec_.name, op.dtype)),
                                        device_.hbm_bandwidth);
  log_ratio_[{op.dtype, std::move(sizes)}] = std::log(time / model);
}

void Refiner::refuse(const KernelOp& op) { refused_.insert(op_text(op)); }

std::vector<Refiner::Line> Refiner::lines() const {
  std::vector<Line> found;
  for (std::size_t axis = 0; axis < is_axis_.size(); ++axis) {
    if (!is_axis_[axis]) continue;
    std::map<std::pair<DType, Sizes>, std::size_t> numbers;
    for (const auto& [at, ratio] : log_ratio_) {  // ascending, hence so is each line
      auto where = at;
      where.second[axis] = 0;
      const auto [number, is_new] = numbers.try_emplace(std::move(where), found.size());
      if (is_new)
        found.push_back({.dtype = at.first, .axis = axis, .dims = at.second, .points = {}});
      found[number->second].points.emplace_back(at.second[axis], ratio);
    }
  }
  return found;
}

// The coarsest rule among the grids of this format that hold the dim as an axis.
std::int64_t Refiner::multiple(DType dtype, std::size_t dim) const {
  std::int64_t greatest = 1;
  for (const Grid& grid : grids_) {
    const auto axis = std::ranges::find(grid.axes, spec_.dims[dim].name, &GridAxis::dim);
    if (grid.dtype == dtype && axis != grid.axes.end()) {
      greatest = std::max(greatest, multiple_of(*axis));
    }
  }
  return greatest;
}

bool Refiner::is_allowed(const KernelOp& op) const {
  if (refused_.contains(op_text(op))) return false;
  return std::ranges::any_of(grids_, [&](const Grid& grid) {
    return grid.dtype == op.dtype && (grid.accept == nullptr || grid.accept(op.dims));
  });
}

void Refiner::propose(const Line& line, std::vector<Candidate>& found) const {
  const std::int64_t step = multiple(line.dtype, line.axis);
  for (std::size_t i = 0; i + 1 < line.points.size(); ++i) {
    const auto [low, low_ratio] = line.points[i];
    const auto [high, high_ratio] = line.points[i + 1];
    const std::optional<std::int64_t> middle = midpoint(low, high, step);
    if (!middle) continue;
    Candidate candidate{.op = {.kernel = std::string(spec_.name), .dtype = line.dtype, .dims = {}},
                        .axis = line.axis};
    for (std::size_t d = 0; d < line.dims.size(); ++d) {
      candidate.op.dims.push_back({.name = std::string(spec_.dims[d].name),
                                   .size = d == line.axis ? *middle : line.dims[d],
                                   .axis = {}});
    }
    if (!is_allowed(candidate.op)) continue;
    // Error of the line between both at the candidate: h1 h2 / 2 of the second derivative. What
    // bends inside the interval, smoothly or in a step, shows at both its ends; what shows at one
    // alone bends beyond it.
    const double curvature = std::sqrt(line.curvature(i) * line.curvature(i + 1));
    candidate.error = curvature * octaves(low, *middle) * octaves(*middle, high) / 2;
    candidate.priority = candidate.error * std::sqrt(octaves(low, high));
    found.push_back(std::move(candidate));
  }
}

std::vector<Candidate> Refiner::next(int count, double least_error) const {
  std::vector<Candidate> found;
  for (const Line& line : lines()) propose(line, found);
  std::erase_if(found, [&](const Candidate& one) { return one.error < least_error; });
  // Values of each dim among the points; neighbours of a candidate stand next to it in another dim.
  std::vector<std::map<DType, std::set<std::int64_t>>> values(spec_.dims.size());
  for (const auto& [at, ratio] : log_ratio_) {
    for (std::size_t d = 0; d < values.size(); ++d) values[d][at.first].insert(at.second[d]);
  }
  const auto next_door = [&](const Candidate& candidate, const auto& is_taken) {
    Sizes at;
    for (const Dim& dim : candidate.op.dims) at.push_back(dim.size);
    for (std::size_t d = 0; d < at.size(); ++d) {
      const std::set<std::int64_t>& all = values[d][candidate.op.dtype];
      const auto here = all.find(at[d]);
      if (!is_axis_[d] || d == candidate.axis || here == all.end()) continue;
      Sizes other = at;
      if (here != all.begin() && (other[d] = *std::prev(here), is_taken(other))) return true;
      if (std::next(here) != all.end() && (other[d] = *std::next(here), is_taken(other)))
        return true;
    }
    return false;
  };
  for (Candidate& candidate : found) {
    const bool is_known = next_door(candidate, [&](const Sizes& sizes) {
      return log_ratio_.contains({candidate.op.dtype, sizes});
    });
    if (is_known) candidate.priority *= kKnownNextDoor;
  }
  std::ranges::stable_sort(found, std::greater{}, &Candidate::priority);
  std::vector<Candidate> best;
  std::set<std::pair<DType, Sizes>> chosen;
  for (Candidate& candidate : found) {
    if (static_cast<int>(best.size()) == count) break;
    const bool is_close = next_door(candidate, [&](const Sizes& sizes) {
      return chosen.contains({candidate.op.dtype, sizes});
    });
    Sizes at;
    for (const Dim& dim : candidate.op.dims) at.push_back(dim.size);
    if (is_close || !chosen.emplace(candidate.op.dtype, at).second) continue;
    best.push_back(std::move(candidate));
  }
  return best;
}

}  // namespace orrery::calibrate

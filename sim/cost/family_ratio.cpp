#include "sim/cost/family_ratio.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/launch_gpu.h"

namespace orrery {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// Weight of a line that ends at the hole against one that passes through it, and of the error of
// the next nodes on the line itself, where leaving a node out doubles the gap. Chosen on the
// held-out rows of the H200 tables; those of the H100 confirm them.
constexpr double kOneSided = 0.1;
constexpr double kSameLine = 0.3;
// Relative, of a line of our own rows, most of whose nodes are holes, that ends so many octaves
// from the hole, beside one that passes through it. Without it a GEMM of 120 x 28,672 x 4,096,
// between rows of 104 and 128 that take 62 and 66 us, took 87 by one of 2,048 columns. That is the
// case that it was chosen on.
constexpr double kPerOctave = 0.1;
// Variance added to a line's own error: the scatter of the measurement itself, about 0.3 %.
constexpr double kNoiseVariance = 1e-5;
// Beyond all rows no less is taken than a line that rises towards its end says, less this, even if
// other lines fall: from few heads to many a kernel goes over from waiting for bytes to computing.
// Chosen as kOneSided, of 0, 0.2, 0.4 and no bound (tests/cost/beyond_rows_test.cpp).
constexpr double kContradicted = 0.4;
// Variance assumed of a line when no neighbour can judge it (10 %).
constexpr double kUnknownVariance = 1e-2;

}  // namespace

Interpolator::Interpolator(const KernelTable& table, FlopsPerSecond peak, BytesPerSecond bandwidth,
                           DType dtype)
    : table_(table),
      prior_(table.spec().prior),
      dtype_(dtype),
      models_launches_(holds_across_ways()),
      peak_(peak),
      bandwidth_(bandwidth) {
  for (const DimSpec& dim : table.spec().dims) {
    scratch_.push_back(Dim{.name = std::string(dim.name), .size = 1, .axis = {}});
  }
}

void Interpolator::ask(std::span<const std::int64_t> dims) {
  const int ignored = table_.layout().ignored;
  if (ignored >= 0) ignored_ = dims[static_cast<std::size_t>(ignored)];
}

Work Interpolator::work(std::span<const std::int64_t> dims) {
  for (std::size_t i = 0; i < dims.size(); ++i) {
    scratch_[i].size = dims[i];
  }
  return table_.spec().work(dtype_, scratch_);
}

// Of the call in scratch_.
double Interpolator::model_time_of(const Work& work) const {
  const bool is_launch = models_launches_ && prior_.launch != nullptr;
  const LaunchWork launch =
      is_launch ? prior_.launch(dtype_, scratch_, launch::kNumSms) : LaunchWork{};
  return work_model_time(prior_, work, peak_, bandwidth_, launch).value();
}

double Interpolator::model_time(std::span<const std::int64_t> dims) {
  return model_time_of(work(dims));
}

Seconds Interpolator::at_fastest_row(int distribution, std::span<const std::int64_t> dims) {
  const KernelTable::FastestRows* rows = table_.fastest_rows(dtype_, distribution);
  if (rows == nullptr) return Seconds(0);
  const Work asked = work(dims);
  const auto& [computing, moving] = *rows;
  Seconds least(0);
  if (computing.work.flops / computing.time >= prior_.flops * peak_) {
    least = computing.time * (asked.flops / computing.work.flops);
  }
  if (moved(moving.work) / moving.time >= prior_.hbm * bandwidth_) {
    least = std::max(least, moving.time * (moved(asked) / moved(moving.work)));
  }
  return least;
}

double Interpolator::model_time_of_scratch() const {
  return model_time_of(table_.spec().work(dtype_, scratch_));
}

double Interpolator::log_model(const FamilyGrid& grid, const GridPoint& point) {
  const GridLayout& layout = table_.layout();
  for (std::size_t i = 0; i < grid.dims.size(); ++i) {
    scratch_[i].size = grid.dims[i];
  }
  for (int a = 0; a < layout.num_axes; ++a) {
    scratch_[layout.axes[a]].size = std::max<std::int64_t>(1, std::llround(point[a]));
  }
  if (grid.is_tied) {
    scratch_[layout.tied].size = scratch_[layout.axes[layout.num_axes - 1]].size;
  }
  if (layout.ignored >= 0) scratch_[layout.ignored].size = ignored_;
  // The nearest family of an op may have fewer groups than the op has active ones.
  const auto active = std::ranges::find(scratch_, "active", &Dim::name);
  const auto groups = std::ranges::find(scratch_, "groups", &Dim::name);
  if (active != scratch_.end() && groups != scratch_.end()) {
    active->size = std::min(active->size, groups->size);
  }
  return std::log(model_time_of_scratch());
}

double Interpolator::node_ratio(const FamilyGrid& grid, const Node& node) {
  const double time = grid.time_of(node);
  return std::isnan(time) ? kNone : std::log(time) - log_model(grid, grid.place_of(node));
}

double Interpolator::known_ratio(const FamilyGrid& grid, const Node& node, bool with_filled) {
  const double measured = node_ratio(grid, node);
  if (!std::isnan(measured) || !with_filled) {
    return measured;
  }
  const std::optional<Ratio> filled = from_lines(grid, node, false);
  return filled && filled->is_inside ? filled->log : kNone;
}

// The line's nodes lie from `end` on in the direction of `step`. 0 where there is one alone.
double Interpolator::bend(const FamilyGrid& grid, const Node& node, int axis, int end, int step,
                          bool with_filled) {
  if (!bends_evenly()) return 0;
  const std::vector<std::int64_t>& values = grid.axes[axis];
  Node at = node;
  at[axis] = end;
  const double last = known_ratio(grid, at, with_filled);
  double before = kNone;
  while ((at[axis] += step) >= 0 && at[axis] < static_cast<int>(values.size()) &&
         std::isnan(before)) {
    before = known_ratio(grid, at, with_filled);
  }
  if (std::isnan(before)) return 0;
  const auto octaves = [&](int from, int to) {
    return std::log2(static_cast<double>(std::max<std::int64_t>(1, values[from])) /
                     static_cast<double>(std::max<std::int64_t>(1, values[to])));
  };
  const double before_end = std::abs(octaves(end, at[axis] - step));
  if (before_end == 0) return 0;
  return (last - before) * std::abs(octaves(node[axis], end)) / before_end;
}

Interpolator::LineGuess Interpolator::along(const FamilyGrid& grid, const Node& node, int axis,
                                            bool with_filled) {
  const std::vector<std::int64_t>& values = grid.axes[axis];
  const int size = static_cast<int>(values.size());
  Node low = node;
  Node high = node;
  double low_ratio = kNone;
  double high_ratio = kNone;
  while (--low[axis] >= 0 && std::isnan(low_ratio)) {
    low_ratio = known_ratio(grid, low, with_filled);
  }
  while (++high[axis] < size && std::isnan(high_ratio)) {
    high_ratio = known_ratio(grid, high, with_filled);
  }
  if (std::isnan(low_ratio) && std::isnan(high_ratio)) return {kNone, false};
  const auto octaves = [&](int from) {
    return std::abs(std::log2(static_cast<double>(std::max<std::int64_t>(1, values[node[axis]])) /
                              static_cast<double>(std::max<std::int64_t>(1, values[from]))));
  };
  if (std::isnan(high_ratio)) {
    const int end = low[axis] + 1;
    return {low_ratio, false, bend(grid, node, axis, end, -1, with_filled), octaves(end)};
  }
  if (std::isnan(low_ratio)) {
    const int end = high[axis] - 1;
    return {high_ratio, false, bend(grid, node, axis, end, 1, with_filled), octaves(end)};
  }
  // Both loops step once past the node they found.
  const auto low_value = static_cast<double>(values[low[axis] + 1]);
  const auto high_value = static_cast<double>(values[high[axis] - 1]);
  const double share = std::log(static_cast<double>(values[node[axis]]) / low_value) /
                       std::log(high_value / low_value);
  return {low_ratio + share * (high_ratio - low_ratio), true};
}

double Interpolator::line_variance(const FamilyGrid& grid, const Node& node, int axis) {
  double sum = 0;
  int count = 0;
  for (int other = 0; other < kMaxAxes; ++other) {
    for (const int step : {-1, 1}) {
      Node neighbour = node;
      neighbour[other] += step;
      if (neighbour[other] < 0 || neighbour[other] >= static_cast<int>(grid.axes[other].size())) {
        continue;
      }
      const double truth = node_ratio(grid, neighbour);
      if (std::isnan(truth)) {
        continue;
      }
      const LineGuess guess = along(grid, neighbour, axis);
      if (!std::isnan(guess.value)) {
        sum += (other == axis ? kSameLine : 1) * (truth - guess.value) * (truth - guess.value);
        ++count;
      }
    }
  }
  return count == 0 ? kUnknownVariance : sum / count;
}

std::optional<Ratio> Interpolator::from_lines(const FamilyGrid& grid, const Node& node,
                                              bool with_filled) {
  double sum = 0;
  double weights = 0;
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::array<LineGuess, kMaxAxes> guesses;
  for (int axis = 0; axis < kMaxAxes; ++axis) guesses[axis] = along(grid, node, axis, with_filled);
  const bool is_inside = std::ranges::any_of(guesses, &LineGuess::is_bracketed);
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const LineGuess& guess = guesses[axis];
    if (std::isnan(guess.value)) {
      continue;
    }
    const double far = table_.is_own() ? kPerOctave * guess.octaves : 0;
    const double weight =
        (guess.is_bracketed ? 1.0 : kOneSided) /
        (line_variance(grid, node, axis) + kNoiseVariance + guess.bend * guess.bend + far * far);
    sum += weight * guess.value;
    weights += weight;
    if (guess.bend > 0) least = std::max(least, guess.value);
    if (guess.bend < 0) most = std::min(most, guess.value);
  }
  if (weights == 0) return std::nullopt;
  const double mean = sum / weights;
  if (is_inside || !bends_evenly()) return Ratio{mean, is_inside};
  if (least <= most) return Ratio{std::clamp(mean, least, most), false};
  return Ratio{std::max(mean, least - kContradicted), false};
}

// Time of the small corner of a rectangle whose other three are measured, the nearest above along
// the second and the third axis: as much less than one of them as the third is less than the other.
// NaN without such a rectangle.
double Interpolator::from_cuts(const FamilyGrid& grid, const Node& node) {
  const auto next_above = [&](int axis) {
    Node at = node;
    do {
      ++at[axis];
    } while (at[axis] < static_cast<int>(grid.axes[axis].size()) && std::isnan(grid.time_of(at)));
    return at;
  };
  const Node first = next_above(1);
  const Node second = next_above(2);
  if (first[1] == static_cast<int>(grid.axes[1].size()) ||
      second[2] == static_cast<int>(grid.axes[2].size())) {
    return kNone;
  }
  return grid.time_of(first) * grid.time_of(second) / grid.time_of({node[0], first[1], second[2]});
}

// A table that was refined point by point has holes no line of which has measured nodes on both
// sides; lines through filled nodes then stand in. Beyond what is measured a hole takes no less
// than rows of no more work and no more than rows of no less.
Ratio Interpolator::fill(const FamilyGrid& grid, const Node& node) {
  const std::optional<Ratio> direct = from_lines(grid, node, false);
  if (direct && direct->is_inside) {
    return *direct;
  }
  const std::optional<Ratio> through_filled = from_lines(grid, node, true);
  if (through_filled && through_filled->is_inside) {
    return *through_filled;
  }
  const double model = log_model(grid, grid.place_of(node));
  const double cut = table_.layout().is_cut_twice ? std::log(from_cuts(grid, node)) : kNone;
  const double time = std::isnan(cut) ? model + (direct ? direct->log : nearest(grid, node)) : cut;
  return {std::clamp(time, std::log(grid.least(node)), std::log(grid.most(node))) - model, false};
}

double Interpolator::nearest(const FamilyGrid& grid, const Node& node) {
  double best = kNone;
  int best_distance = std::numeric_limits<int>::max();
  Node at{};
  for (at[0] = 0; at[0] < static_cast<int>(grid.axes[0].size()); ++at[0]) {
    for (at[1] = 0; at[1] < static_cast<int>(grid.axes[1].size()); ++at[1]) {
      for (at[2] = 0; at[2] < static_cast<int>(grid.axes[2].size()); ++at[2]) {
        const int distance =
            std::abs(at[0] - node[0]) + std::abs(at[1] - node[1]) + std::abs(at[2] - node[2]);
        const double ratio = distance < best_distance ? node_ratio(grid, at) : kNone;
        if (!std::isnan(ratio)) {
          best = ratio;
          best_distance = distance;
        }
      }
    }
  }
  return best;
}

// Linear in the logarithm between the ratios of a smaller and a larger call, and no time beyond
// theirs: the work model bends, so where the ratio falls a line of ratios alone would dip.
double Interpolator::between(const End& low, const End& high, double share, double model) {
  const double ratio = low.ratio + share * (high.ratio - low.ratio);
  if (high.ratio >= low.ratio) {
    return ratio;
  }
  const double at_low = low.ratio + low.model;
  const double at_high = high.ratio + high.model;
  return std::clamp(ratio + model, std::min(at_low, at_high), std::max(at_low, at_high)) - model;
}

std::optional<Ratio> Interpolator::across(const FamilyGrid& grid, int first, double value) {
  constexpr double kInside = 2;
  const std::vector<std::int64_t>& axis = grid.axes[1];
  double low = 0;
  double high = 0;
  double low_ratio = kNone;
  double high_ratio = kNone;
  for (int i = 0; i < static_cast<int>(axis.size()); ++i) {
    const double ratio = node_ratio(grid, {first, i, 0});
    if (std::isnan(ratio)) {
      continue;
    }
    const auto at = static_cast<double>(axis[i]);
    if (at <= value) {
      low = at;
      low_ratio = ratio;
    } else if (std::isnan(high_ratio)) {
      high = at;
      high_ratio = ratio;
    }
  }
  if (std::isnan(low_ratio) && std::isnan(high_ratio)) {
    return std::nullopt;
  }
  if (std::isnan(low_ratio)) {
    return Ratio{high_ratio, high <= kInside * value};
  }
  if (std::isnan(high_ratio)) {
    return Ratio{low_ratio, value <= kInside * low};
  }
  const auto row = static_cast<double>(grid.axes[0][first]);
  return Ratio{
      between({low_ratio, log_model(grid, {row, low})}, {high_ratio, log_model(grid, {row, high})},
              std::log(value / low) / std::log(high / low), log_model(grid, {row, value})),
      true};
}

std::optional<Ratio> Interpolator::along_curve(const FamilyGrid& grid, const GridPoint& point) {
  constexpr double kNear = 2;
  const auto column = std::ranges::lower_bound(
      grid.axes[1], point[1], {}, [](std::int64_t value) { return static_cast<double>(value); });
  if (column == grid.axes[1].end() || static_cast<double>(*column) != point[1]) {
    return std::nullopt;
  }
  const int second = static_cast<int>(column - grid.axes[1].begin());
  double low = 0;
  double low_ratio = kNone;
  for (int i = 0; i < static_cast<int>(grid.axes[0].size()); ++i) {
    const double ratio = node_ratio(grid, {i, second, 0});
    const auto at = static_cast<double>(grid.axes[0][i]);
    if (std::isnan(ratio)) {
      continue;
    }
    if (at <= point[0]) {
      low = at;
      low_ratio = ratio;
      continue;
    }
    if (std::isnan(low_ratio) || at > kNear * low) {
      return std::nullopt;
    }
    return Ratio{between({low_ratio, log_model(grid, {low, point[1]})},
                         {ratio, log_model(grid, {at, point[1]})},
                         std::log(point[0] / low) / std::log(at / low), log_model(grid, point)),
                 true};
  }
  return std::nullopt;
}

Ratio Interpolator::scattered_ratio(const FamilyGrid& grid, const GridPoint& point) {
  if (const std::optional<Ratio> near = along_curve(grid, point)) {
    return *near;
  }
  const std::vector<std::int64_t>& axis = grid.axes[0];
  std::optional<Ratio> below;
  std::optional<Ratio> above;
  double low = 0;
  double high = 0;
  for (int i = 0; i < static_cast<int>(axis.size()) && !above; ++i) {
    const auto at = static_cast<double>(axis[i]);
    const std::optional<Ratio> ratio = across(grid, i, point[1]);
    if (ratio && at <= point[0]) {
      below = ratio;
      low = at;
    } else if (ratio) {
      above = ratio;
      high = at;
    }
  }
  if (below && low == point[0]) {
    return *below;
  }
  if (!below || !above) {
    return Ratio{below ? below->log : above ? above->log : 0.0, false};
  }
  return Ratio{between({below->log, log_model(grid, {low, point[1]})},
                       {above->log, log_model(grid, {high, point[1]})},
                       std::log(point[0] / low) / std::log(high / low), log_model(grid, point)),
               below->is_inside && above->is_inside};
}

Ratio Interpolator::within(const FamilyGrid& grid, const Cell& cell, int axis, Node& node,
                           GridPoint& place) {
  if (axis == kMaxAxes) {
    const double ratio = node_ratio(grid, node);
    return std::isnan(ratio) ? fill(grid, node) : Ratio{ratio, true};
  }
  node[axis] = cell.low[axis];
  place[axis] = static_cast<double>(grid.axes[axis][cell.low[axis]]);
  const Ratio low = within(grid, cell, axis + 1, node, place);
  if (cell.low[axis] == cell.high[axis]) {
    return low;
  }
  const double low_model = log_model(grid, place);
  node[axis] = cell.high[axis];
  place[axis] = static_cast<double>(grid.axes[axis][cell.high[axis]]);
  const Ratio high = within(grid, cell, axis + 1, node, place);
  const double high_model = log_model(grid, place);
  place[axis] = cell.place[axis];
  return {between({low.log, low_model}, {high.log, high_model}, cell.share[axis],
                  log_model(grid, place)),
          low.is_inside && high.is_inside};
}

Interpolator::Cell Interpolator::cell_of(const FamilyGrid& grid, const GridPoint& point) const {
  Cell cell;
  for (int a = 0; a < table_.layout().num_axes; ++a) {
    const std::vector<std::int64_t>& axis = grid.axes[a];
    const auto above = std::ranges::lower_bound(
        axis, point[a], {}, [](std::int64_t value) { return static_cast<double>(value); });
    const int index = static_cast<int>(above - axis.begin());
    if (above == axis.end()) {
      cell.low[a] = cell.high[a] = index - 1;
      cell.is_inside = false;
    } else if (static_cast<double>(*above) == point[a] || index == 0) {
      cell.low[a] = cell.high[a] = index;
      cell.is_inside = cell.is_inside && static_cast<double>(*above) == point[a];
    } else {
      cell.low[a] = index - 1;
      cell.high[a] = index;
      const auto below = static_cast<double>(axis[index - 1]);
      cell.share[a] = std::log(point[a] / below) / std::log(static_cast<double>(*above) / below);
    }
    cell.place[a] =
        std::clamp(point[a], static_cast<double>(axis.front()), static_cast<double>(axis.back()));
  }
  return cell;
}

Ratio Interpolator::ratio_at(const FamilyGrid& grid, const GridPoint& point) {
  if (table_.layout().is_scattered) {
    return scattered_ratio(grid, point);
  }
  const Cell cell = cell_of(grid, point);
  Node node{};
  GridPoint place = cell.place;
  Ratio result = within(grid, cell, 0, node, place);
  result.is_inside = result.is_inside && cell.is_inside;
  return result;
}

}  // namespace orrery

#include "sim/cost/interpolate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace orrery {
namespace {

using Node = std::array<int, kMaxAxes>;
using Point = std::array<double, kMaxAxes>;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// Weight of a line that ends at the hole against one that passes through it, and of the error of
// the next nodes on the line itself, where leaving a node out doubles the gap. Chosen on the
// held-out rows of the H200 tables; those of the H100 confirm them.
constexpr double kOneSided = 0.1;
constexpr double kSameLine = 0.3;
// Variance added to a line's own error: the scatter of the measurement itself, about 0.3 %.
constexpr double kNoiseVariance = 1e-5;
// Variance assumed of a line when no neighbour can judge it (10 %).
constexpr double kUnknownVariance = 1e-2;

struct Ratio {
  double log = 0;
  bool is_inside = true;  // bracketed by measurements on all sides
};

// A guess at a node from its own line along one axis.
struct LineGuess {
  double value = kNone;
  bool is_bracketed = false;
};

class Interpolator {
 public:
  Interpolator(const KernelTable& table, const Device& device, DType dtype)
      : table_(table),
        model_(work_model(table.spec().name)),
        dtype_(dtype),
        peak_(peak_flops(device, arithmetic_dtype(table.spec().name, dtype))),
        bandwidth_(device.hbm_bandwidth) {
    for (const DimSpec& dim : table.spec().dims) {
      scratch_.push_back(Dim{.name = std::string(dim.name), .size = 1, .axis = {}});
    }
  }

  // Work-model time of a call.
  double model_time(std::span<const std::int64_t> dims) {
    for (std::size_t i = 0; i < dims.size(); ++i) {
      scratch_[i].size = dims[i];
    }
    return model_time_of_scratch();
  }

  // log(time / work-model time) of the family at `point`, clamped to the grid.
  Ratio ratio_at(const Grid& grid, const Point& point);

 private:
  double model_time_of_scratch() const {
    return work_model_time(model_, table_.spec().work(dtype_, scratch_), peak_, bandwidth_).value();
  }

  double node_ratio(const Grid& grid, const Node& node);
  LineGuess along(const Grid& grid, const Node& node, int axis);
  // Mean square error of `axis` lines at the neighbours of `node`.
  double line_variance(const Grid& grid, const Node& node, int axis);
  Ratio fill(const Grid& grid, const Node& node);
  double nearest(const Grid& grid, const Node& node);

  const KernelTable& table_;
  WorkModel model_;
  DType dtype_;
  FlopsPerSecond peak_;
  BytesPerSecond bandwidth_;
  Dims scratch_;
};

double Interpolator::node_ratio(const Grid& grid, const Node& node) {
  const std::size_t index = grid.index(node);
  double time = grid.time_s[index];
  if (std::isnan(time) && grid.twin != nullptr && grid.host_bound[index]) {
    time = grid.twin->time_s[index] * grid.twin_factor;
  }
  if (std::isnan(time)) {
    return kNone;
  }
  const GridLayout& layout = table_.layout();
  for (std::size_t i = 0; i < grid.dims.size(); ++i) {
    scratch_[i].size = grid.dims[i];
  }
  for (int a = 0; a < layout.num_axes; ++a) {
    scratch_[layout.axes[a]].size = grid.axes[a][node[a]];
  }
  if (grid.is_tied) {
    scratch_[layout.tied].size = scratch_[layout.axes[layout.num_axes - 1]].size;
  }
  return std::log(time / model_time_of_scratch());
}

LineGuess Interpolator::along(const Grid& grid, const Node& node, int axis) {
  const std::vector<std::int64_t>& values = grid.axes[axis];
  const int size = static_cast<int>(values.size());
  Node low = node;
  Node high = node;
  double low_ratio = kNone;
  double high_ratio = kNone;
  while (--low[axis] >= 0 && std::isnan(low_ratio)) {
    low_ratio = node_ratio(grid, low);
  }
  while (++high[axis] < size && std::isnan(high_ratio)) {
    high_ratio = node_ratio(grid, high);
  }
  if (std::isnan(low_ratio) || std::isnan(high_ratio)) {
    return {std::isnan(low_ratio) ? high_ratio : low_ratio, false};
  }
  // Both loops step once past the node they found.
  const auto low_value = static_cast<double>(values[low[axis] + 1]);
  const auto high_value = static_cast<double>(values[high[axis] - 1]);
  const double share = std::log(static_cast<double>(values[node[axis]]) / low_value) /
                       std::log(high_value / low_value);
  return {low_ratio + share * (high_ratio - low_ratio), true};
}

double Interpolator::line_variance(const Grid& grid, const Node& node, int axis) {
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

Ratio Interpolator::fill(const Grid& grid, const Node& node) {
  double sum = 0;
  double weights = 0;
  bool is_inside = false;
  for (int axis = 0; axis < kMaxAxes; ++axis) {
    const LineGuess guess = along(grid, node, axis);
    if (std::isnan(guess.value)) {
      continue;
    }
    is_inside = is_inside || guess.is_bracketed;
    const double weight =
        (guess.is_bracketed ? 1.0 : kOneSided) / (line_variance(grid, node, axis) + kNoiseVariance);
    sum += weight * guess.value;
    weights += weight;
  }
  return weights > 0 ? Ratio{sum / weights, is_inside} : Ratio{nearest(grid, node), false};
}

double Interpolator::nearest(const Grid& grid, const Node& node) {
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

Ratio Interpolator::ratio_at(const Grid& grid, const Point& point) {
  Node low{};
  Node high{};
  Point share{};
  Ratio result;
  for (int a = 0; a < table_.layout().num_axes; ++a) {
    const std::vector<std::int64_t>& axis = grid.axes[a];
    const auto above = std::ranges::lower_bound(
        axis, point[a], {}, [](std::int64_t value) { return static_cast<double>(value); });
    const int index = static_cast<int>(above - axis.begin());
    if (above == axis.end()) {
      low[a] = high[a] = index - 1;
      result.is_inside = false;
    } else if (static_cast<double>(*above) == point[a] || index == 0) {
      low[a] = high[a] = index;
      result.is_inside = result.is_inside && static_cast<double>(*above) == point[a];
    } else {
      low[a] = index - 1;
      high[a] = index;
      const auto below = static_cast<double>(axis[index - 1]);
      share[a] = std::log(point[a] / below) / std::log(static_cast<double>(*above) / below);
    }
  }
  for (int corner = 0; corner < (1 << kMaxAxes); ++corner) {
    Node node{};
    double weight = 1;
    for (int a = 0; a < kMaxAxes; ++a) {
      const bool is_high = (corner >> a & 1) != 0;
      node[a] = is_high ? high[a] : low[a];
      weight *= is_high ? share[a] : 1 - share[a];
    }
    if (weight == 0) {
      continue;
    }
    Ratio value{node_ratio(grid, node), true};
    if (std::isnan(value.log)) {
      value = fill(grid, node);
    }
    result.log += weight * value.log;
    result.is_inside = result.is_inside && value.is_inside;
  }
  return result;
}

// Octaves that another format counts for: more than any other difference.
constexpr double kOtherFormat = 100;

// Distance of two families in octaves, summed over their dims.
double family_distance(const KernelTable::Key& a, const KernelTable::Key& b) {
  double distance = a[0] == b[0] ? 0 : kOtherFormat;
  for (std::size_t i = 2; i < a.size(); ++i) {
    const double low = static_cast<double>(std::max<std::int64_t>(a[i], 1));
    const double high = static_cast<double>(std::max<std::int64_t>(b[i], 1));
    distance += std::abs(std::log2(low / high));
  }
  return distance;
}

class Predictor {
 public:
  Predictor(const KernelTable& table, const Device& device, DType dtype, int distribution,
            std::span<const std::int64_t> dims)
      : table_(table),
        device_(device),
        dtype_(stored_dtype(dtype)),
        distribution_(distribution),
        dims_(dims),
        family_dims_(dims.begin(), dims.end()),
        interpolator_(table, device, dtype_) {
    for (int a = 0; a < table.layout().num_axes; ++a) {
      point_[a] = static_cast<double>(dims[table.layout().axes[a]]);
    }
  }

  std::optional<Prediction> run();

 private:
  // Tables measure bf16; fp16 runs on the same units at the same width.
  static DType stored_dtype(DType dtype) { return dtype == DType::kFp16 ? DType::kBf16 : dtype; }

  int dim_index(std::string_view name) const {
    const std::vector<DimSpec>& dims = table_.spec().dims;
    const auto found = std::ranges::find(dims, name, &DimSpec::name);
    return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
  }
  void widen_window();
  bool move_to_empty_context();
  std::optional<Ratio> between_kv_heads();
  std::optional<Ratio> from_nearest_family();
  std::optional<double> measured(const Grid& grid) const;

  const KernelTable& table_;
  const Device& device_;
  DType dtype_;
  int distribution_;
  std::span<const std::int64_t> dims_;
  std::vector<std::int64_t> family_dims_;  // dims under which the family is looked up
  Point point_{};
  Interpolator interpolator_;
};

// A window that covers everything is full attention.
void Predictor::widen_window() {
  const int window = dim_index("window");
  const int context = dim_index("context");
  const int query = dim_index("query");
  if (window < 0 || context < 0) {
    return;
  }
  const std::int64_t reach = dims_[context] + (query >= 0 ? dims_[query] : 0);
  if (dims_[window] >= reach && table_.family(dtype_, distribution_, family_dims_) == nullptr) {
    family_dims_[window] = kFullWindow;
  }
}

// Prefill over cached context where the table has none: the same family without context, at the
// query length q' of equal work, q'^2 / 2 = q context + q^2 / 2. Whole attention blocks keep their
// q, since most of their work is in the projections.
bool Predictor::move_to_empty_context() {
  const int context = dim_index("context");
  const int query = dim_index("query");
  if (context < 0 || query < 0 || dims_[context] == 0 ||
      table_.family(dtype_, distribution_, family_dims_) != nullptr) {
    return false;
  }
  family_dims_[context] = 0;
  if (!table_.spec().name.ends_with("_module")) {
    const int window = dim_index("window");
    const auto q = static_cast<double>(dims_[query]);
    auto cached = static_cast<double>(dims_[context]);
    if (window >= 0) {
      cached = std::min(cached, static_cast<double>(dims_[window]));
    }
    for (int a = 0; a < table_.layout().num_axes; ++a) {
      if (table_.layout().axes[a] == query) {
        point_[a] = std::sqrt(q * q + 2 * q * cached);
      }
    }
  }
  return true;
}

std::optional<double> Predictor::measured(const Grid& grid) const {
  Node node{};
  for (int a = 0; a < table_.layout().num_axes; ++a) {
    const std::vector<std::int64_t>& axis = grid.axes[a];
    const std::int64_t value = family_dims_[table_.layout().axes[a]];
    const auto found = std::ranges::lower_bound(axis, value);
    if (found == axis.end() || *found != value) {
      return std::nullopt;
    }
    node[a] = static_cast<int>(found - axis.begin());
  }
  const double time = grid.time_s[grid.index(node)];
  return std::isnan(time) ? std::nullopt : std::optional(time);
}

std::optional<Ratio> Predictor::between_kv_heads() {
  const int tied = table_.layout().tied;
  if (tied < 0) {
    return std::nullopt;
  }
  const std::int64_t wanted = family_dims_[tied];
  const Grid* below = nullptr;
  const Grid* above = nullptr;
  KernelTable::Key key = table_.key(dtype_, distribution_, family_dims_);
  for (const auto& [other, grid] : table_.families()) {
    const std::int64_t kv_heads = other[2 + tied];
    key[2 + tied] = kv_heads;
    if (other != key || kv_heads == 0) {
      continue;
    }
    if (kv_heads < wanted && (below == nullptr || kv_heads > below->dims[tied])) {
      below = &grid;
    }
    if (kv_heads > wanted && (above == nullptr || kv_heads < above->dims[tied])) {
      above = &grid;
    }
  }
  if (below == nullptr || above == nullptr) {
    return std::nullopt;
  }
  const Ratio low = interpolator_.ratio_at(*below, point_);
  const Ratio high = interpolator_.ratio_at(*above, point_);
  const auto fewer = static_cast<double>(below->dims[tied]);
  const auto more = static_cast<double>(above->dims[tied]);
  const double share = std::log(static_cast<double>(wanted) / fewer) / std::log(more / fewer);
  return Ratio{low.log + share * (high.log - low.log), low.is_inside && high.is_inside};
}

std::optional<Ratio> Predictor::from_nearest_family() {
  const KernelTable::Key key = table_.key(dtype_, distribution_, family_dims_);
  const KernelTable::Key* best_key = nullptr;
  const Grid* best = nullptr;
  double best_distance = std::numeric_limits<double>::infinity();
  for (const auto& [other, grid] : table_.families()) {
    if (other[1] != key[1]) {
      continue;
    }
    const double distance = family_distance(key, other);
    if (distance < best_distance) {
      best_key = &other;
      best = &grid;
      best_distance = distance;
    }
  }
  if (best == nullptr) {
    return std::nullopt;
  }
  // The neighbour's ratio is to the work of its own format, since that is what was measured.
  Interpolator neighbour(table_, device_, static_cast<DType>((*best_key)[0]));
  return Ratio{neighbour.ratio_at(*best, point_).log, false};
}

std::optional<Prediction> Predictor::run() {
  widen_window();
  const bool is_equivalent = move_to_empty_context();
  const Grid* grid = table_.family(dtype_, distribution_, family_dims_);
  std::optional<Ratio> ratio;
  if (grid != nullptr) {
    if (!is_equivalent) {
      if (const std::optional<double> time = measured(*grid)) {
        return Prediction{Seconds(*time), Basis::kMeasured};
      }
    }
    ratio = interpolator_.ratio_at(*grid, point_);
  } else {
    ratio = between_kv_heads();
    if (!ratio) {
      ratio = from_nearest_family();
    }
  }
  if (!ratio) {
    return std::nullopt;
  }
  const bool is_inside = ratio->is_inside && !is_equivalent;
  return Prediction{Seconds(interpolator_.model_time(dims_) * std::exp(ratio->log)),
                    is_inside ? Basis::kInterpolated : Basis::kRoofline};
}

}  // namespace

std::optional<Prediction> predict(const KernelTable& table, const Device& device, DType dtype,
                                  int distribution, std::span<const std::int64_t> dims) {
  return Predictor(table, device, dtype, distribution, dims).run();
}

}  // namespace orrery

#include "sim/cost/interpolate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "sim/cost/family_ratio.h"
#include "sim/cost/moe_tiles.h"

namespace orrery {
namespace {

// Octaves that narrow GEMMs against bf16 ones count for: more than any width of the weights.
constexpr double kOtherArithmetic = 10;

// The format whose rows answer for `dtype`: itself, or else the nearest in arithmetic and then in
// width among those of that distribution. Itself also where the table has none of them.
DType nearest_format(const KernelTable& table, DType dtype, int distribution) {
  const auto distance = [&](DType other) {
    const KernelSpec& spec = table.spec();
    const bool is_narrow = arithmetic_dtype(spec, dtype) != DType::kBf16;
    const bool other_is_narrow = arithmetic_dtype(spec, other) != DType::kBf16;
    return (is_narrow == other_is_narrow ? 0 : kOtherArithmetic) +
           std::abs(std::log2(bytes_per_element(other) / bytes_per_element(dtype)));
  };
  std::optional<DType> best;
  std::optional<DType> seen;  // families are sorted by it
  for (const auto& [key, grid] : table.families()) {
    const auto format = static_cast<DType>(key[0]);
    if (key[1] != distribution || format == seen) {
      continue;
    }
    seen = format;
    if (format == dtype) {
      return dtype;
    }
    if (!best || distance(format) < distance(*best)) {
      best = format;
    }
  }
  return best.value_or(dtype);
}

// Distance of two families of one format in octaves, summed over their dims.
double family_distance(const KernelTable::Key& a, const KernelTable::Key& b) {
  double distance = 0;
  for (std::size_t i = 2; i + 1 < a.size(); ++i) {
    const double low = static_cast<double>(std::max<std::int64_t>(a[i], 1));
    const double high = static_cast<double>(std::max<std::int64_t>(b[i], 1));
    distance += std::abs(std::log2(low / high));
  }
  return distance;
}

class Predictor {
 public:
  Predictor(const KernelTable& table, const Device& measured_on, const Device& device, DType dtype,
            int distribution, std::span<const std::int64_t> dims)
      : table_(table),
        measured_on_(measured_on),
        device_(device),
        dtype_(stored_dtype(dtype)),
        rows_dtype_(nearest_format(table, dtype_, distribution)),
        distribution_(distribution),
        dims_(dims),
        family_dims_(dims.begin(), dims.end()),
        interpolator_(table, peak_of(measured_on, rows_dtype_), measured_on.hbm_bandwidth,
                      rows_dtype_) {
    interpolator_.ask(dims);
    for (int a = 0; a < table.layout().num_axes; ++a) {
      point_[a] = static_cast<double>(dims[table.layout().axes[a]]);
    }
  }

  std::optional<Prediction> run();

 private:
  // Tables measure bf16; fp16 runs on the same units at the same width.
  static DType stored_dtype(DType dtype) { return dtype == DType::kFp16 ? DType::kBf16 : dtype; }

  FlopsPerSecond peak_of(const Device& device, DType dtype) const {
    return peak_flops(device, arithmetic_dtype(table_.spec(), dtype));
  }
  int dim_index(std::string_view name) const {
    const std::vector<DimSpec>& dims = table_.spec().dims;
    const auto found = std::ranges::find(dims, name, &DimSpec::name);
    return found == dims.end() ? -1 : static_cast<int>(found - dims.begin());
  }
  Seconds on_device(double time);
  void widen_window();
  bool move_to_empty_context();
  double equivalent_model_time();
  std::optional<Ratio> own_way(bool is_equivalent);
  std::optional<Ratio> own_way_of_other_heads(int way);
  std::optional<Ratio> between_kv_heads();
  std::optional<Ratio> between_contexts();
  [[nodiscard]] GridPoint equivalent_point(const FamilyGrid& foreign) const;
  [[nodiscard]] double distance_to_grid(const FamilyGrid& grid, const GridPoint& point) const;
  std::optional<Ratio> from_nearest_families();
  [[nodiscard]] std::optional<Ratio> by_tiles();
  [[nodiscard]] bool has_near_weights(const FamilyGrid& grid) const;
  std::optional<std::size_t> measured(const FamilyGrid& grid) const;

  const KernelTable& table_;
  const Device& measured_on_;
  const Device& device_;
  DType dtype_;
  DType rows_dtype_;  // format of the rows that answer
  int distribution_;
  std::span<const std::int64_t> dims_;
  std::vector<std::int64_t> family_dims_;  // dims under which the family is looked up
  GridPoint point_{};
  Interpolator interpolator_;
};

// A time of the rows moved to the device and format asked for. What it needs less than the work
// model is an efficiency of the whole; what it needs more is latency and idle units, which a faster
// memory does not shorten: it follows the work model at the new peak and the old bandwidth. On the
// H100 predicted from the H200 this halves the error of scaling the whole time (docs/data.md).
Seconds Predictor::on_device(double time) {
  if (&device_ == &measured_on_ && rows_dtype_ == dtype_) {
    return Seconds(time);
  }
  const FlopsPerSecond peak = peak_of(device_, dtype_);
  const FlopsPerSecond reached =
      peak * efficiency_gain(device_, peak, measured_on_, peak_of(measured_on_, rows_dtype_));
  const auto model_at = [&](BytesPerSecond bandwidth) {
    Interpolator model(table_, reached, bandwidth, dtype_);
    model.model_launches(interpolator_.models_launches());
    return model.model_time(dims_);
  };
  const double there = interpolator_.model_time(dims_);
  const double here = model_at(device_.hbm_bandwidth);
  if (time <= there) {
    return Seconds(time * here / there);
  }
  return Seconds(here + (time - there) * model_at(measured_on_.hbm_bandwidth) / there);
}

// A window that covers everything is full attention.
void Predictor::widen_window() {
  const int window = dim_index("window");
  const int context = dim_index("context");
  const int query = dim_index("query");
  if (window < 0 || context < 0) {
    return;
  }
  const std::int64_t reach = dims_[context] + (query >= 0 ? dims_[query] : 0);
  if (dims_[window] >= reach &&
      table_.family(rows_dtype_, distribution_, family_dims_) == nullptr) {
    family_dims_[window] = kFullWindow;
  }
}

// Prefill over cached context between rows of shorter and of longer ones, none included, each of
// which hold the call's queries between theirs, where these take longer than the work model (a few
// queries over many keys leave units idle, which the square problem of equal work does not) or
// launches are modelled. Empty
// where its own context holds it, or there are no such on both sides.
std::optional<Ratio> Predictor::between_contexts() {
  const int context = dim_index("context");
  const int query = dim_index("query");
  if (context < 0 || query < 0 || dims_[context] == 0) return std::nullopt;
  struct Side {
    std::int64_t context = 0;
    Ratio ratio;
  };
  std::optional<Side> below;
  std::optional<Side> above;
  KernelTable::Key key = table_.key(rows_dtype_, distribution_, family_dims_);
  for (const auto& [other, grid] : table_.families()) {
    const std::int64_t of_rows = other[2 + context];
    key[2 + context] = of_rows;
    if (other != key) continue;
    const Ratio ratio = interpolator_.ratio_at(grid, point_);
    if (!ratio.is_inside) continue;
    if (of_rows == dims_[context]) return std::nullopt;
    std::optional<Side>& side = of_rows < dims_[context] ? below : above;
    const bool is_nearer =
        !side || (of_rows < dims_[context] ? of_rows > side->context : of_rows < side->context);
    if (is_nearer) side = Side{of_rows, ratio};
  }
  if (!below || !above) return std::nullopt;
  const auto keys = [&](std::int64_t cached) {
    return std::log(static_cast<double>(cached + dims_[query]));
  };
  const double share =
      (keys(dims_[context]) - keys(below->context)) / (keys(above->context) - keys(below->context));
  const Ratio ratio{std::lerp(below->ratio.log, above->ratio.log, share)};
  const bool knows_idle_units = interpolator_.models_launches();
  return ratio.log > 0 || knows_idle_units ? std::optional(ratio) : std::nullopt;
}

// Prefill over cached context where the table has none, and launches are not modelled: the same
// family without context, at the query length q' of equal work, q'^2 / 2 = q context + q^2 / 2.
// Whole attention blocks keep their q, since most of their work is in the projections.
bool Predictor::move_to_empty_context() {
  const int context = dim_index("context");
  const int query = dim_index("query");
  if (context < 0 || query < 0 || dims_[context] == 0 || interpolator_.models_launches() ||
      table_.family(rows_dtype_, distribution_, family_dims_) != nullptr) {
    return false;
  }
  family_dims_[context] = 0;
  if (table_.spec().prior.composite != Composite::kAttentionModule) {
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

// Work-model time of the problem that stands in for a prefill over cached context. It computes as
// much and reads less, so what it loses against its work model is what the call loses; the cache is
// streamed besides at the work model's rate, as the decode tables confirm for short queries.
double Predictor::equivalent_model_time() {
  std::vector<std::int64_t> dims = family_dims_;
  for (int a = 0; a < table_.layout().num_axes; ++a) {
    dims[table_.layout().axes[a]] = std::max<std::int64_t>(1, std::llround(point_[a]));
  }
  return interpolator_.model_time(dims);
}

// Between rows of the kernel's own way with the call, where there are such on both sides; if not,
// between those of the nearest number of KV heads that has them.
std::optional<Ratio> Predictor::own_way(bool is_equivalent) {
  const int way = table_.way_of(rows_dtype_, family_dims_);
  if (way == KernelTable::kAllWays || is_equivalent) {
    return std::nullopt;
  }
  const FamilyGrid* grid = table_.family(rows_dtype_, distribution_, family_dims_, way);
  if (grid != nullptr) {
    interpolator_.model_launches(true);
    const Ratio ratio = interpolator_.ratio_at(*grid, point_);
    if (ratio.is_inside) return ratio;
    interpolator_.model_launches(false);
  }
  return own_way_of_other_heads(way);
}

std::optional<Ratio> Predictor::own_way_of_other_heads(int way) {
  const int tied = table_.layout().tied;
  if (tied < 0) return std::nullopt;
  KernelTable::Key key = table_.key(rows_dtype_, distribution_, family_dims_, way);
  const auto wanted = static_cast<double>(family_dims_[tied]);
  std::optional<Ratio> best;
  double best_distance = std::numeric_limits<double>::infinity();
  for (const auto& [other, grid] : table_.families()) {
    key[2 + tied] = other[2 + tied];
    if (other != key || key[2 + tied] == 0) continue;
    const double distance = std::abs(std::log2(static_cast<double>(key[2 + tied]) / wanted));
    if (distance >= best_distance) continue;
    const Ratio ratio = interpolator_.ratio_at(grid, point_);
    if (!ratio.is_inside) continue;
    best = Ratio{ratio.log, false};
    best_distance = distance;
  }
  return best;
}

// Index of the call's own row.
std::optional<std::size_t> Predictor::measured(const FamilyGrid& grid) const {
  std::array<int, kMaxAxes> node{};
  for (int a = 0; a < table_.layout().num_axes; ++a) {
    const std::vector<std::int64_t>& axis = grid.axes[a];
    const std::int64_t value = family_dims_[table_.layout().axes[a]];
    const auto found = std::ranges::lower_bound(axis, value);
    if (found == axis.end() || *found != value) {
      return std::nullopt;
    }
    node[a] = static_cast<int>(found - axis.begin());
  }
  const std::size_t index = grid.index(node);
  return std::isnan(grid.time_s[index]) ? std::nullopt : std::optional(index);
}

std::optional<Ratio> Predictor::between_kv_heads() {
  const int tied = table_.layout().tied;
  if (tied < 0) {
    return std::nullopt;
  }
  const std::int64_t wanted = family_dims_[tied];
  const FamilyGrid* below = nullptr;
  const FamilyGrid* above = nullptr;
  KernelTable::Key key = table_.key(rows_dtype_, distribution_, family_dims_);
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

// How far a point lies outside the axes of a grid, in octaves.
double Predictor::distance_to_grid(const FamilyGrid& grid, const GridPoint& point) const {
  double distance = 0;
  for (int a = 0; a < table_.layout().num_axes; ++a) {
    const auto low = static_cast<double>(grid.axes[a].front());
    const auto high = static_cast<double>(grid.axes[a].back());
    distance += std::abs(std::log2(point[a] / std::clamp(point[a], low, high)));
  }
  return distance;
}

// The call's place in a foreign family. An MoE keeps the tokens per expert, which decide how many
// experts are read and how full their tiles are, and the share of the experts that the rank has,
// which decides how far the fullest rank is above the mean.
GridPoint Predictor::equivalent_point(const FamilyGrid& foreign) const {
  GridPoint point = point_;
  const int topk = dim_index("topk");
  const int experts_total = dim_index("experts_total");
  if (topk < 0 || experts_total < 0) return point;
  const auto times = [&](int dim) {
    return static_cast<double>(foreign.dims[dim]) / static_cast<double>(dims_[dim]);
  };
  point[0] *= times(experts_total) / times(topk);
  const int experts = dim_index("experts");
  for (int a = 0; a < table_.layout().num_axes; ++a) {
    if (table_.layout().axes[a] == experts) point[a] *= times(experts_total);
  }
  return point;
}

// The mean of the ratios of the nearest families, the nearer the more: one alone would give way to
// another from one size of a call to the next. Numbers chosen on the H200 tables of three engines
// with whole shapes left out (docs/data.md).
std::optional<Ratio> Predictor::from_nearest_families() {
  constexpr std::size_t kMost = 4;
  constexpr double kPower = 6;
  constexpr double kOwn = 0.5;   // octaves that are added to every distance
  constexpr double kGrid = 0.5;  // weight of an octave outside of what a family has rows of
  struct Family {
    double distance = 0;
    GridPoint point;
    const FamilyGrid* grid = nullptr;
  };
  std::vector<Family> found;
  const KernelTable::Key key = table_.key(rows_dtype_, distribution_, family_dims_);
  for (const auto& [other, grid] : table_.families()) {
    if (other[0] != key[0] || other[1] != key[1] || other.back() != KernelTable::kAllWays) {
      continue;
    }
    const GridPoint point = equivalent_point(grid);
    found.push_back(
        {family_distance(key, other) + kGrid * distance_to_grid(grid, point), point, &grid});
  }
  if (found.empty()) return std::nullopt;
  std::ranges::stable_sort(found, {}, &Family::distance);
  double sum = 0;
  double weights = 0;
  for (const Family& family : std::span(found).first(std::min(kMost, found.size()))) {
    const double weight = std::pow(family.distance + kOwn, -kPower);
    sum += weight * interpolator_.ratio_at(*family.grid, family.point).log;
    weights += weight;
  }
  return Ratio{sum / weights, false};
}

// Of the kernel that is a whole layer of routed experts its tiles are simulated: of shapes left out
// they are nearer than rows of other shapes (docs/kernels/fused_moe.md).
std::optional<Ratio> Predictor::by_tiles() {
  const bool is_layer = table_.spec().routed == RoutedRole::kLayer;
  const bool is_fp8 = rows_dtype_ == DType::kFp8;
  if (!is_layer || (rows_dtype_ != DType::kBf16 && !is_fp8)) return std::nullopt;
  const auto size = [&](std::string_view name) { return dims_[dim_index(name)]; };
  const FusedMoeShape shape{.tokens = size("tokens"),
                            .hidden = size("hidden"),
                            .ffn = size("ffn"),
                            .experts = size("experts_total"),
                            .topk = size("topk"),
                            .activation = static_cast<ExpertActivation>(size("activation")),
                            .is_fp8 = is_fp8,
                            .ranks = size("experts_total") / size("experts"),
                            .shared = size("shared")};
  if (shape.ranks * size("experts") != shape.experts) return std::nullopt;
  const MoeTileTimes times =
      moe_tile_times(is_fp8, peak_of(measured_on_, rows_dtype_), measured_on_.hbm_bandwidth);
  const MoeLayerTime tiles =
      simulate_moe_tiles(shape, times, {.num_sms = std::max(1, measured_on_.num_sms)});
  return Ratio{std::log(tiles.duration.value() / interpolator_.model_time(dims_)), false};
}

// Of the kernel that is a layer a family may have rows of other weights alone. Where these are more
// than 1.4 times as large or small, hidden times ffn, tiles are nearer: 4,096 x 1,408 and 1,536
// from each other are 1.2 % off by rows and 3.7 by tiles, 2,048 x 768 from both 19 and 3.1.
bool Predictor::has_near_weights(const FamilyGrid& grid) const {
  if (table_.spec().routed != RoutedRole::kLayer) return true;
  constexpr double kFar = 1.4;
  const auto& [tokens, hidden, ffn] = grid.axes;
  for (std::size_t h = 0; h < hidden.size(); ++h) {
    for (std::size_t f = 0; f < ffn.size(); ++f) {
      const double apart = std::abs(std::log(static_cast<double>(hidden[h]) / point_[1])) +
                           std::abs(std::log(static_cast<double>(ffn[f]) / point_[2]));
      if (apart > std::log(kFar)) continue;
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        const std::size_t node =
            grid.index({static_cast<int>(t), static_cast<int>(h), static_cast<int>(f)});
        if (!std::isnan(grid.time_s[node])) return true;
      }
    }
  }
  return false;
}

std::optional<Prediction> Predictor::run() {
  widen_window();
  std::optional<Ratio> ratio = between_contexts();
  const bool is_between = ratio.has_value();
  const bool is_equivalent = !is_between && move_to_empty_context();
  const FamilyGrid* grid = table_.family(rows_dtype_, distribution_, family_dims_);
  Prediction found;
  if (is_between) {
    found.rows = "rows of shorter and of longer contexts";
  } else if (grid != nullptr && has_near_weights(*grid)) {
    if (!is_equivalent) {
      if (const std::optional<std::size_t> row = measured(*grid)) {
        const bool is_own = rows_dtype_ == dtype_;
        return Prediction{.time = on_device(grid->time_s[*row]),
                          .measured = Seconds(grid->time_s[*row]),
                          .basis = is_own ? Basis::kMeasured : Basis::kRoofline,
                          .is_own_family = is_own,
                          .spread = grid->spread[*row],
                          .rows = is_own ? "the row of the call" : "the row of another format"};
      }
    }
    ratio = own_way(is_equivalent);
    found.rows = ratio ? "between rows that the kernel takes as it does the call"
                 : is_equivalent
                     ? "rows without cached context, of the square problem of equal work"
                     : "rows of its family";
    if (!ratio) ratio = interpolator_.ratio_at(*grid, point_);
  } else {
    ratio = between_kv_heads();
    found.rows = "rows of fewer and of more KV heads";
  }
  found.is_own_family = ratio.has_value() && rows_dtype_ == dtype_;
  if (!ratio) {
    ratio = by_tiles();
    found.rows = "its tiles, simulated";
  }
  if (!ratio) {
    ratio = from_nearest_families();
    found.rows = "rows of the nearest families";
  }
  if (!ratio) {
    return std::nullopt;
  }
  const bool is_inside = ratio->is_inside && !is_equivalent && rows_dtype_ == dtype_;
  const double model = interpolator_.model_time(dims_);
  double time = model * std::exp(ratio->log);
  if (is_equivalent && ratio->log > 0) {
    time = model + std::min(model, equivalent_model_time()) * (std::exp(ratio->log) - 1);
  }
  found.time = on_device(time);
  found.measured = Seconds(time);
  found.at_fastest_row = interpolator_.at_fastest_row(distribution_, dims_);
  found.basis = is_inside ? Basis::kInterpolated : Basis::kRoofline;
  return found;
}

}  // namespace

std::optional<Prediction> predict(const KernelTable& table, const Device& measured_on,
                                  const Device& device, DType dtype, int distribution,
                                  std::span<const std::int64_t> dims) {
  return Predictor(table, measured_on, device, dtype, distribution, dims).run();
}

namespace {

std::string names_of(const std::vector<DimSpec>& dims) {
  std::string text;
  for (const DimSpec& dim : dims) {
    text += (text.empty() ? "" : ", ") + std::string(dim.name);
  }
  return text;
}

}  // namespace

std::vector<std::int64_t> ordered_dims(const KernelSpec& spec, const KernelOp& op) {
  std::vector<std::int64_t> sizes(spec.dims.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const DimSpec& wanted = spec.dims[i];
    const bool in_order = i < op.dims.size() && op.dims[i].name == wanted.name;
    const auto found = in_order ? op.dims.begin() + static_cast<std::ptrdiff_t>(i)
                                : std::ranges::find(op.dims, wanted.name, &Dim::name);
    if (found == op.dims.end()) {
      throw std::invalid_argument("kernel " + op.kernel + " lacks dim '" +
                                  std::string(wanted.name) + "'; expected " + names_of(spec.dims));
    }
    sizes[i] = found->size;
    if (sizes[i] < (wanted.may_be_zero ? 0 : 1)) {
      throw std::invalid_argument("kernel " + op.kernel + ": dim " + std::string(wanted.name) +
                                  " is " + std::to_string(sizes[i]) + "; expected " +
                                  (wanted.may_be_zero ? "0" : "1") + " or more");
    }
  }
  return sizes;
}

}  // namespace orrery

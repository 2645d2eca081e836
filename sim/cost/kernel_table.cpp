#include "sim/cost/kernel_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "sim/cost/roofline.h"

namespace orrery {
namespace {

int dim_index(const KernelSpec& spec, std::string_view name) {
  for (std::size_t i = 0; i < spec.dims.size(); ++i) {
    if (spec.dims[i].name == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

struct KeyHash {
  std::size_t operator()(const KernelTable::Key& key) const {
    std::uint64_t hash = 0x9E3779B97F4A7C15ULL;
    for (const std::int64_t value : key) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001B3ULL;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

void sort_unique(std::vector<std::int64_t>& values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

int position(const std::vector<std::int64_t>& axis, std::int64_t value) {
  return static_cast<int>(std::ranges::lower_bound(axis, value) - axis.begin());
}

}  // namespace

GridLayout grid_layout(const KernelSpec& spec) {
  const TableGrid& grid = spec.prior.grid;
  GridLayout layout;
  if (grid.axes.empty()) {
    layout.num_axes = std::min<int>(kMaxAxes, static_cast<int>(spec.dims.size()));
    for (int a = 0; a < layout.num_axes; ++a) {
      layout.axes[a] = a;
    }
    return layout;
  }
  for (const std::string_view name : grid.axes) {
    layout.axes[layout.num_axes++] = dim_index(spec, name);
  }
  layout.tied = dim_index(spec, grid.tied);
  layout.ignored = dim_index(spec, grid.ignored);
  layout.is_scattered = grid.is_scattered;
  layout.is_cut_twice = grid.is_cut_twice;
  return layout;
}

double FamilyGrid::time_at(std::size_t at) const {
  const bool is_of_twin = std::isnan(time_s[at]) && twin != nullptr && host_bound[at];
  return is_of_twin ? twin->time_s[at] * twin_factor : time_s[at];
}

bool FamilyGrid::is_spike(std::size_t at) const {
  // Over what each of the next rows says; or less over some of them, spikes themselves perhaps, and
  // far over all together. 38 of the 997,126 rows of shipped tables are; within it are kernels
  // that change with a dim, such as attention of another form for short contexts.
  constexpr double kOverEach = 2;
  constexpr double kOverSome = 1.5;
  constexpr double kOverAll = 4;  // geometric mean
  int num_above = 0;
  int num_below = 0;
  double least = std::numeric_limits<double>::infinity();
  double product = 1;
  std::size_t stride = time_s.size();
  for (const std::vector<std::int64_t>& axis : axes) {
    stride /= axis.size();
    const std::size_t place = at / stride % axis.size();
    const std::size_t begin = at - place * stride;
    const auto is_row = [&](std::size_t i) { return !std::isnan(time_s[begin + i * stride]); };
    const auto compare = [&](double said) {
      least = std::min(least, time_s[at] / said);
      product *= time_s[at] / said;
    };
    std::size_t above = place + 1;
    while (above < axis.size() && !is_row(above)) ++above;
    if (above < axis.size()) {
      ++num_above;
      compare(time_s[begin + above * stride]);
    }
    std::size_t below = place;
    while (below > 0 && !is_row(below - 1)) --below;
    if (below-- > 0) {
      ++num_below;
      const double more = static_cast<double>(axis[place]) / static_cast<double>(axis[below]);
      compare(more * time_s[begin + below * stride]);
    }
    if (least <= kOverSome) return false;
  }
  const int num = num_above + num_below;
  if (num_above == 0 || num == 1) return false;
  return least > kOverEach || product > std::pow(kOverAll, num);
}

std::int64_t FamilyGrid::set_aside_spikes() {
  std::int64_t num_spikes = 0;
  for (std::vector<std::size_t> spikes(1); !spikes.empty();) {  // one may hide another
    spikes.clear();
    for (std::size_t at = 0; at < time_s.size(); ++at) {
      if (!std::isnan(time_s[at]) && is_spike(at)) spikes.push_back(at);
    }
    for (const std::size_t at : spikes) time_s[at] = std::numeric_limits<double>::quiet_NaN();
    num_spikes += std::ssize(spikes);
  }
  return num_spikes;
}

void FamilyGrid::bound() {
  const std::size_t size = time_s.size();
  most_s.resize(size);
  least_s.resize(size);
  // Nodes tell their next neighbours what they know, along one axis after the other: those from
  // `first` to `last` are told by, or tell, the ones `stride` further on.
  const auto along_axes = [&](const auto& pass) {
    std::size_t span = size;
    for (const std::vector<std::int64_t>& axis : axes) {
      const std::size_t stride = span / axis.size();
      for (std::size_t first = 0; first < size; first += span) {
        pass(first, first + span - stride, stride);
      }
      span = stride;
    }
  };
  for (std::size_t at = 0; at < size; ++at) {
    most_s[at] = std::fmin(time_at(at), std::numeric_limits<double>::infinity());
  }
  along_axes([&](std::size_t first, std::size_t last, std::size_t stride) {
    for (std::size_t at = last; at-- > first;) {
      most_s[at] = std::min(most_s[at], most_s[at + stride]);
    }
  });
  for (std::size_t at = 0; at < size; ++at) {
    least_s[at] = std::isnan(time_at(at)) ? 0 : most_s[at];
  }
  along_axes([&](std::size_t first, std::size_t last, std::size_t stride) {
    for (std::size_t at = first; at < last; ++at) {
      least_s[at + stride] = std::max(least_s[at + stride], least_s[at]);
    }
  });
}

std::array<double, kMaxAxes> FamilyGrid::place_of(const std::array<int, kMaxAxes>& node) const {
  std::array<double, kMaxAxes> place{};
  for (int a = 0; a < kMaxAxes; ++a) {
    place[a] = static_cast<double>(axes[a][node[a]]);
  }
  return place;
}

KernelTable::Key KernelTable::key(DType dtype, int distribution, std::span<const std::int64_t> dims,
                                  int way) const {
  Key key(dims.size() + 3);
  key.back() = way;
  key[0] = static_cast<std::int64_t>(dtype);
  key[1] = distribution;
  std::ranges::copy(dims, key.begin() + 2);
  if (layout_.tied >= 0) {
    const std::int64_t follower = dims[layout_.tied];
    // One head is both multi-head and grouped; it is filed as grouped.
    if (follower > 1 && follower == dims[layout_.axes[layout_.num_axes - 1]]) {
      key[2 + layout_.tied] = 0;
    }
  }
  if (layout_.ignored >= 0) {
    key[2 + layout_.ignored] = 0;
  }
  for (int a = 0; a < layout_.num_axes; ++a) {
    key[2 + layout_.axes[a]] = 0;
  }
  return key;
}

// Rows of each family, families in order of first appearance.
KernelTable::Members KernelTable::members(const KernelRows& rows,
                                          const std::function<bool(std::int64_t)>& keep) const {
  std::unordered_map<Key, std::size_t, KeyHash> numbers;
  Members members;
  const auto add = [&](Key row_key, std::int64_t row) {
    if (!members.empty() && members.back().first == row_key) {
      members.back().second.push_back(row);
      return;
    }
    const auto [found, is_new] = numbers.try_emplace(row_key, members.size());
    if (is_new) {
      members.emplace_back(std::move(row_key), std::vector<std::int64_t>{});
    }
    members[found->second].second.push_back(row);
  };
  for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
    if (keep && !keep(row)) {
      continue;
    }
    const auto dims = rows.row_dims(row);
    add(key(rows.dtype[row], rows.distribution[row], dims), row);
    if (const int way = way_of(rows.dtype[row], dims); way != kAllWays) {
      add(key(rows.dtype[row], rows.distribution[row], dims, way), row);
    }
  }
  return members;
}

FamilyGrid KernelTable::arranged(const KernelRows& rows, const Key& family_key,
                                 const std::vector<std::int64_t>& family_rows) const {
  FamilyGrid grid;
  grid.dims.assign(family_key.begin() + 2, family_key.end() - 1);
  grid.is_tied = layout_.tied >= 0 && grid.dims[layout_.tied] == 0;
  for (int a = 0; a < kMaxAxes; ++a) {
    if (a >= layout_.num_axes) {
      grid.axes[a] = {0};
      continue;
    }
    std::vector<std::int64_t>& axis = grid.axes[a];
    axis.reserve(family_rows.size());
    for (const std::int64_t row : family_rows) {
      const std::int64_t value = rows.row_dims(row)[layout_.axes[a]];
      if (axis.empty() || axis.back() != value) {
        axis.push_back(value);
      }
    }
    sort_unique(axis);
  }
  const std::size_t num_nodes = grid.axes[0].size() * grid.axes[1].size() * grid.axes[2].size();
  grid.time_s.assign(num_nodes, std::numeric_limits<double>::quiet_NaN());
  grid.spread.assign(num_nodes, 0.0);
  for (const std::int64_t row : family_rows) {
    std::array<int, kMaxAxes> node{};
    for (int a = 0; a < layout_.num_axes; ++a) {
      node[a] = position(grid.axes[a], rows.row_dims(row)[layout_.axes[a]]);
    }
    const std::size_t index = grid.index(node);
    if (rows.host_bound[row] != 0) {
      grid.host_bound.resize(grid.time_s.size());
      grid.host_bound[index] = true;
    } else if (!(grid.time_s[index] <= rows.time_s[row])) {  // or NaN
      grid.time_s[index] = rows.time_s[row];
      grid.spread[index] = rows.spread[row];
    }
  }
  return grid;
}

KernelTable::KernelTable(const KernelRows& rows, const std::function<bool(std::int64_t)>& keep)
    : spec_(rows.spec),
      layout_(grid_layout(*rows.spec)),
      is_own_(rows.is_own),
      has_ways_(rows.is_own && rows.spec->prior.grid.is_by_way),
      leaves_out_long_calls_(rows.is_own && rows.spec->prior.grid.is_flat_for_long_calls),
      distributions_(rows.distributions),
      eager_gap_(rows.eager_gap_s),
      warm_ratio_(rows.spec->prior.reads_what_was_written
                      ? rows.warm_ratio
                      : std::vector<std::pair<double, double>>{}) {
  for (auto& [family_key, family_rows] : members(rows, keep)) {
    FamilyGrid grid = arranged(rows, family_key, family_rows);
    if (!rows.is_own && !layout_.is_scattered) num_spikes_ += grid.set_aside_spikes();
    families_.emplace(std::move(family_key), std::move(grid));
  }
  link_twins();
  for (auto& [family_key, grid] : families_) {
    grid.bound();
  }
  find_fastest_rows(rows, keep);
}

void KernelTable::find_fastest_rows(const KernelRows& rows,
                                    const std::function<bool(std::int64_t)>& keep) {
  const auto flops = [](const TimedWork& row) { return row.work.flops / row.time; };
  const auto bytes = [](const TimedWork& row) { return moved(row.work) / row.time; };
  Dims dims;
  for (const DimSpec& dim : spec_->dims) {
    dims.push_back({.name = std::string(dim.name), .size = 0, .axis = {}});
  }
  for (std::int64_t i = 0; i < rows.num_rows(); ++i) {
    if (rows.host_bound[i] != 0 || (keep && !keep(i))) continue;
    const auto sizes = rows.row_dims(i);
    for (std::size_t d = 0; d < dims.size(); ++d) dims[d].size = sizes[d];
    const TimedWork row{spec_->work(rows.dtype[i], dims), Seconds(rows.time_s[i])};
    const auto [found, is_first] =
        fastest_rows_.try_emplace({rows.dtype[i], rows.distribution[i]}, FastestRows{row, row});
    FastestRows& fastest = found->second;
    if (flops(row) > flops(fastest.computing)) fastest.computing = row;
    if (bytes(row) > bytes(fastest.moving)) fastest.moving = row;
  }
}

const KernelTable::FastestRows* KernelTable::fastest_rows(DType dtype, int distribution) const {
  const auto found = fastest_rows_.find({dtype, distribution});
  return found == fastest_rows_.end() ? nullptr : &found->second;
}

void KernelTable::link_twins() {
  for (auto& [family_key, grid] : families_) {
    if (grid.host_bound.empty()) {
      continue;
    }
    Key twin_key = family_key;
    twin_key[0] = static_cast<std::int64_t>(DType::kFp8);
    const auto twin = families_.find(twin_key);
    if (twin == families_.end() || twin->second.axes != grid.axes) {
      continue;
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < grid.time_s.size(); ++i) {
      const double ratio = grid.time_s[i] / twin->second.time_s[i];
      if (!std::isnan(ratio)) {
        ratios.push_back(ratio);
      }
    }
    grid.twin = &twin->second;
    if (!ratios.empty()) {
      const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
      std::ranges::nth_element(ratios, middle);
      grid.twin_factor = *middle;
    }
  }
}

double KernelTable::warm_ratio(Bytes moved) const {
  if (warm_ratio_.empty()) {
    return 1;
  }
  const auto above =
      std::ranges::upper_bound(warm_ratio_, moved.value(), {}, &std::pair<double, double>::first);
  if (above == warm_ratio_.begin() || above == warm_ratio_.end()) {
    return (above == warm_ratio_.end() ? warm_ratio_.back() : warm_ratio_.front()).second;
  }
  const auto& [low, low_ratio] = *(above - 1);
  const double share = std::log(moved.value() / low) / std::log(above->first / low);
  return low_ratio + share * (above->second - low_ratio);
}

const FamilyGrid* KernelTable::family(DType dtype, int distribution,
                                      std::span<const std::int64_t> dims, int way) const {
  const auto found = families_.find(key(dtype, distribution, dims, way));
  return found == families_.end() ? nullptr : &found->second;
}

}  // namespace orrery

#include "sim/cost/kernel_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "sim/cost/csv_reader.h"

namespace orrery {
namespace {

constexpr double kMicrosecond = 1e-6;

struct NamedLayout {
  std::string_view kernel;
  std::array<std::string_view, kMaxAxes> axes;
  std::string_view tied;
  std::string_view ignored;
  bool is_scattered = false;
};

// Axes are dims along which time / work-model time is smooth enough to interpolate. A kernel that
// is not listed interpolates over its first three dims.
constexpr std::array kLayouts = {
    NamedLayout{"gemm", {"m", "n", "k"}, "", ""},
    NamedLayout{"batched_gemm", {"batch", "m", ""}, "", ""},
    NamedLayout{"attention_prefill", {"batch", "query", "heads"}, "kv_heads", ""},
    NamedLayout{"attention_decode", {"batch", "context", "heads"}, "kv_heads", ""},
    NamedLayout{"mla_prefill", {"batch", "query", "heads"}, "", ""},
    NamedLayout{"mla_decode", {"batch", "context", "heads"}, "", ""},
    NamedLayout{"mla_prefill_module", {"batch", "query", "heads"}, "", ""},
    NamedLayout{"mla_decode_module", {"batch", "context", "heads"}, "", ""},
    NamedLayout{"moe", {"tokens", "inter", "experts"}, "", ""},
    NamedLayout{"quantize", {"tokens", "hidden", ""}, "", ""},
    NamedLayout{"index_shuffling", {"tokens", "", ""}, "", ""},
    NamedLayout{"gather_mul", {"rows", "tokens", ""}, "", "", true},
    NamedLayout{"scatter_add", {"rows", "tokens", ""}, "", "", true},
    NamedLayout{"grouped_gemm", {"rows", "active", ""}, "", "", true},
    NamedLayout{"grouped_gemm_scatter", {"rows", "active", ""}, "", "tokens", true},
    NamedLayout{"expert_gemm", {"m", "n", "k"}, "", "expert"},
    NamedLayout{"expert_gather", {"rows", "hidden", ""}, "", "expert"},
};

int dim_index(const KernelSpec& spec, std::string_view name) {
  for (std::size_t i = 0; i < spec.dims.size(); ++i) {
    if (spec.dims[i].name == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

DType read_dtype(const CsvReader& csv, int column) {
  try {
    return parse_dtype(csv.text(column));
  } catch (const std::invalid_argument& error) {
    csv.fail("column dtype: " + std::string(error.what()));
  }
}

// Which of two words a column holds; the first when there is no such column.
int choice(const CsvReader& csv, int column, std::array<std::string_view, 2> words) {
  if (column < 0 || csv.text(column) == words[0]) {
    return 0;
  }
  if (csv.text(column) != words[1]) {
    csv.fail("column " + csv.columns()[column] + ": found '" + std::string(csv.text(column)) +
             "'; expected " + std::string(words[0]) + " or " + std::string(words[1]));
  }
  return 1;
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

// A call measured launched one by one.
struct EagerRow {
  DType dtype = DType::kBf16;
  std::vector<std::int64_t> dims;
  double time_s = 0;
};

double eager_gap(const KernelRows& rows, const std::vector<EagerRow>& eager) {
  std::map<std::pair<DType, std::vector<std::int64_t>>, double> in_graph;
  for (std::int64_t row = 0; row < rows.num_rows() && !eager.empty(); ++row) {
    const auto dims = rows.row_dims(row);
    in_graph.emplace(std::pair{rows.dtype[row], std::vector(dims.begin(), dims.end())},
                     rows.time_s[row]);
  }
  std::vector<double> gaps;
  for (const EagerRow& row : eager) {
    const auto found = in_graph.find({row.dtype, row.dims});
    if (found != in_graph.end() && found->second < kShortCall) {
      gaps.push_back(row.time_s - found->second);
    }
  }
  if (gaps.empty()) {
    return 0;
  }
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2);
  std::ranges::nth_element(gaps, middle);
  return std::max(*middle, 0.0);
}

}  // namespace

KernelRows read_kernel_rows(const std::filesystem::path& path) {
  CsvReader csv(path);
  KernelRows rows;
  rows.spec = find_kernel_spec(path.stem().string());
  if (rows.spec == nullptr) {
    throw std::invalid_argument(path.string() + ": no kernel of that name; expected <kernel>.csv");
  }
  const int dtype_column = csv.require("dtype");
  const int time_column = csv.require("time_us");
  const int distribution_column = csv.column("distribution");
  const int host_bound_column = csv.column("host_bound");
  const int spread_column = csv.column("spread");
  const int l2_column = csv.column("l2");
  const int mode_column = csv.column("mode");
  std::vector<int> columns;
  columns.reserve(rows.spec->dims.size());
  for (const DimSpec& dim : rows.spec->dims) {
    columns.push_back(csv.require(dim.name));
  }
  rows.num_dims = static_cast<int>(columns.size());
  std::string_view last_text;
  DType last_dtype = DType::kBf16;
  std::vector<EagerRow> eager;
  while (csv.next()) {
    const bool is_cold = choice(csv, l2_column, {"cold", "warm"}) == 0;
    const bool is_graph = choice(csv, mode_column, {"graph", "eager"}) == 0;
    if (!is_cold) {
      continue;
    }
    std::vector<std::int64_t> dims(columns.size());
    for (std::size_t i = 0; i < columns.size(); ++i) {
      std::int64_t value = csv.integer(columns[i]);
      const std::string_view name = rows.spec->dims[i].name;
      if (value == 0 && !rows.spec->dims[i].may_be_zero && name != "window") {
        csv.fail("column " + std::string(name) + ": found 0; expected 1 or more");
      }
      if (value == 0 && name == "window") {
        value = kFullWindow;
      }
      dims[i] = value;
    }
    if (csv.text(dtype_column) != last_text) {
      last_dtype = read_dtype(csv, dtype_column);
      last_text = csv.text(dtype_column);
    }
    const double time_s = csv.positive_number(time_column) * kMicrosecond;
    if (!is_graph) {
      eager.push_back({.dtype = last_dtype, .dims = std::move(dims), .time_s = time_s});
      continue;
    }
    rows.dims.insert(rows.dims.end(), dims.begin(), dims.end());
    rows.time_s.push_back(time_s);
    const bool has_spread = spread_column >= 0 && csv.text(spread_column) != "0";
    rows.spread.push_back(has_spread ? csv.positive_number(spread_column) : 0);
    rows.dtype.push_back(last_dtype);
    std::uint8_t distribution = 0;
    if (distribution_column >= 0) {
      const std::string_view name = csv.text(distribution_column);
      const auto found = std::ranges::find(rows.distributions, name);
      distribution = static_cast<std::uint8_t>(found - rows.distributions.begin());
      if (found == rows.distributions.end()) {
        rows.distributions.emplace_back(name);
      }
    }
    rows.distribution.push_back(distribution);
    const bool is_host_bound = host_bound_column >= 0 && csv.integer(host_bound_column) != 0;
    rows.host_bound.push_back(is_host_bound ? 1 : 0);
  }
  rows.eager_gap_s = eager_gap(rows, eager);
  return rows;
}

GridLayout grid_layout(const KernelSpec& spec) {
  GridLayout layout;
  const auto named = std::ranges::find(kLayouts, spec.name, &NamedLayout::kernel);
  if (named == kLayouts.end()) {
    layout.num_axes = std::min<int>(kMaxAxes, static_cast<int>(spec.dims.size()));
    for (int a = 0; a < layout.num_axes; ++a) {
      layout.axes[a] = a;
    }
    return layout;
  }
  for (const std::string_view name : named->axes) {
    const int index = dim_index(spec, name);
    if (index >= 0) {
      layout.axes[layout.num_axes++] = index;
    }
  }
  layout.tied = dim_index(spec, named->tied);
  layout.ignored = dim_index(spec, named->ignored);
  layout.is_scattered = named->is_scattered;
  return layout;
}

KernelTable::Key KernelTable::key(DType dtype, int distribution,
                                  std::span<const std::int64_t> dims) const {
  Key key(dims.size() + 2);
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

KernelTable::KernelTable(const KernelRows& rows, const std::function<bool(std::int64_t)>& keep)
    : spec_(rows.spec),
      layout_(grid_layout(*rows.spec)),
      distributions_(rows.distributions),
      eager_gap_(rows.eager_gap_s) {
  // Rows of each family, families in order of first appearance.
  std::unordered_map<Key, std::size_t, KeyHash> numbers;
  std::vector<std::pair<Key, std::vector<std::int64_t>>> members;
  for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
    if (keep && !keep(row)) {
      continue;
    }
    Key row_key = key(rows.dtype[row], rows.distribution[row], rows.row_dims(row));
    if (!members.empty() && members.back().first == row_key) {
      members.back().second.push_back(row);
      continue;
    }
    const auto [found, is_new] = numbers.try_emplace(row_key, members.size());
    if (is_new) {
      members.emplace_back(std::move(row_key), std::vector<std::int64_t>{});
    }
    members[found->second].second.push_back(row);
  }
  for (auto& [family_key, family_rows] : members) {
    FamilyGrid grid;
    grid.dims.assign(family_key.begin() + 2, family_key.end());
    grid.is_tied = layout_.tied >= 0 && grid.dims[layout_.tied] == 0;
    for (int a = 0; a < kMaxAxes; ++a) {
      if (a < layout_.num_axes) {
        std::vector<std::int64_t>& axis = grid.axes[a];
        axis.reserve(family_rows.size());
        for (const std::int64_t row : family_rows) {
          const std::int64_t value = rows.row_dims(row)[layout_.axes[a]];
          if (axis.empty() || axis.back() != value) {
            axis.push_back(value);
          }
        }
        sort_unique(axis);
      } else {
        grid.axes[a] = {0};
      }
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
    families_.emplace(std::move(family_key), std::move(grid));
  }
  link_twins();
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

const FamilyGrid* KernelTable::family(DType dtype, int distribution,
                                      std::span<const std::int64_t> dims) const {
  const auto found = families_.find(key(dtype, distribution, dims));
  return found == families_.end() ? nullptr : &found->second;
}

}  // namespace orrery

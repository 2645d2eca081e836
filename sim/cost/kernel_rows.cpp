#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "sim/cost/csv_reader.h"
#include "sim/cost/kernel_table.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

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
    csv.fail("column " + csv.columns()[column] + ": found '" + shown(csv.text(column)) +
             "'; expected " + std::string(words[0]) + " or " + std::string(words[1]));
  }
  return 1;
}

// A call measured otherwise than the rows: launched eagerly, or with a warm L2.
struct OtherRow {
  DType dtype = DType::kBf16;
  std::vector<std::int64_t> dims;
  double time_s = 0;
};

using Call = std::pair<DType, std::vector<std::int64_t>>;

std::map<Call, double> times_by_call(const KernelRows& rows) {
  std::map<Call, double> times;
  for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
    const auto dims = rows.row_dims(row);
    times.emplace(Call{rows.dtype[row], std::vector(dims.begin(), dims.end())}, rows.time_s[row]);
  }
  return times;
}

double eager_gap(const std::map<Call, double>& in_graph, const std::vector<OtherRow>& eager) {
  std::vector<double> gaps;
  for (const OtherRow& row : eager) {
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

std::vector<std::pair<double, double>> warm_ratio(const KernelSpec& spec,
                                                  const std::map<Call, double>& cold,
                                                  const std::vector<OtherRow>& warm) {
  std::map<double, std::vector<double>> by_bytes;
  for (const OtherRow& row : warm) {
    const auto found = cold.find({row.dtype, row.dims});
    if (found == cold.end()) {
      continue;
    }
    Dims dims;
    for (std::size_t i = 0; i < row.dims.size(); ++i) {
      dims.push_back({.name = std::string(spec.dims[i].name), .size = row.dims[i], .axis = {}});
    }
    const Work work = spec.work(row.dtype, dims);
    by_bytes[(work.bytes_read + work.bytes_written).value()].push_back(row.time_s / found->second);
  }
  std::vector<std::pair<double, double>> ratio;
  for (const auto& [bytes, ratios] : by_bytes) {
    const double sum = std::accumulate(ratios.begin(), ratios.end(), 0.0);
    ratio.emplace_back(bytes, sum / static_cast<double>(ratios.size()));
  }
  return ratio;
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
  const int source_column = csv.column("source");
  std::vector<int> columns;
  columns.reserve(rows.spec->dims.size());
  for (const DimSpec& dim : rows.spec->dims) {
    columns.push_back(csv.require(dim.name));
  }
  rows.num_dims = static_cast<int>(columns.size());
  std::string_view last_text;
  DType last_dtype = DType::kBf16;
  std::vector<OtherRow> eager;
  std::vector<OtherRow> warm;
  std::vector<std::int64_t> dims(columns.size());  // of the row that is read
  while (csv.next()) {
    const bool is_cold = choice(csv, l2_column, {"cold", "warm"}) == 0;
    const bool is_graph = choice(csv, mode_column, {"graph", "eager"}) == 0;
    if (!is_cold && !is_graph) {
      continue;
    }
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
    if (last_text.empty() || csv.text(dtype_column) != last_text) {
      last_dtype = read_dtype(csv, dtype_column);
      last_text = csv.text(dtype_column);
    }
    const double time_s = csv.microseconds(time_column).value();
    if (!is_graph || !is_cold) {
      std::vector<OtherRow>& others = is_graph ? warm : eager;
      others.push_back({.dtype = last_dtype, .dims = dims, .time_s = time_s});
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
    rows.source.push_back(source_column >= 0 ? csv.integer(source_column) : -1);
  }
  if (!eager.empty() || !warm.empty()) {
    const std::map<Call, double> times = times_by_call(rows);
    rows.eager_gap_s = eager_gap(times, eager);
    rows.warm_ratio = warm_ratio(*rows.spec, times, warm);
  }
  return rows;
}

}  // namespace orrery

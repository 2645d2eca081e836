#include "kernels/calibrate/tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <tuple>

#include "sim/cost/interpolate.h"
#include "sim/cost/kernel_table.h"

namespace orrery::calibrate {
namespace {

namespace fs = std::filesystem;

template <typename... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string text_of(std::string_view text) { return std::string(text); }

void replace_file(const fs::path& path, const std::string& content) {
  const fs::path temporary = path.string() + ".tmp";
  std::ofstream file(temporary, std::ios::binary);
  file << content;
  file.close();
  if (!file) {
    throw std::system_error(std::make_error_code(std::errc::io_error),
                            "write " + temporary.string());
  }
  fs::rename(temporary, path);
}

using KernelRowsByName = std::map<std::string, std::vector<const Row*>>;

KernelRowsByName rows_by_kernel(std::span<const Row> rows) {
  KernelRowsByName found;
  for (const Row& row : rows) {
    if (row.refusal.empty()) found[row.op.kernel].push_back(&row);
  }
  const auto order = [](const Row* row) {
    std::vector<std::int64_t> sizes;
    for (const Dim& dim : row->op.dims) sizes.push_back(dim.size);
    return std::tuple(row->state.l2, row->state.mode, to_text(row->op.dtype), sizes);
  };
  for (auto& [kernel, members] : found) std::ranges::sort(members, {}, order);
  return found;
}

std::string csv(const std::vector<const Row*>& rows) {
  std::string text = "dtype";
  for (const Dim& dim : rows.front()->op.dims) text += "," + dim.name;
  text += ",time_us,spread,samples,l2,mode,sm_clock_mhz,power_capped,power_w,sustained_us\n";
  for (const Row* row : rows) {
    text += to_text(row->op.dtype);
    for (const Dim& dim : row->op.dims) text += "," + std::to_string(dim.size);
    text += print(",%.6g,%.3g,%d,", row->time.value() * 1e6, row->spread, row->samples);
    text += text_of(l2_text(row->state.l2)) + "," + text_of(to_text(row->state.mode));
    text += "," + std::to_string(row->sm_clock_mhz) + (row->power_capped ? ",1" : ",0");
    text += row->sustained ? print(",%.1f,%.6g\n", row->sustained->power.value(),
                                   row->sustained->time.value() * 1e6)
                           : ",,\n";
  }
  return text;
}

// A value between quotation marks of YAML.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(
      std::lround(share * static_cast<double>(values.size() - 1)))];
}

std::string meta_of_table(const std::vector<const Row*>& rows) {
  std::map<std::string, int> states;
  std::vector<double> spreads;
  int discarded = 0;
  int capped = 0;
  int sustained = 0;
  for (const Row* row : rows) {
    ++states[text_of(l2_text(row->state.l2)) + " L2, " + text_of(to_text(row->state.mode))];
    spreads.push_back(row->spread);
    discarded += row->discarded;
    capped += row->power_capped ? 1 : 0;
    sustained += row->sustained ? 1 : 0;
  }
  std::string text = "    rows: " + std::to_string(rows.size()) + "\n    states:";
  const char* separator = " {";
  for (const auto& [state, count] : states) {
    text += separator + quoted(state) + ": " + std::to_string(count);
    separator = ", ";
  }
  text += print("}\n    spread: {median: %.3g, p95: %.3g}\n", quantile(spreads, 0.5),
                quantile(spreads, 0.95));
  text += print("    discarded_samples: %d\n    power_capped_rows: %d\n    sustained_rows: %d\n",
                discarded, capped, sustained);
  return text;
}

constexpr std::string_view kUnits =
    "units: \"time_us: microseconds of one call, the median of `samples` samples; spread: their "
    "interquartile range over it; sm_clock_mhz: while the last of them ran; power_capped 1: the "
    "power cap lowered the clock then; power_w and sustained_us: board power and time of one call "
    "repeated back to back for 0.3 s, empty where that was not done\"\n"
    "l2: \"cold: launches rotate over copies of all operands that together exceed twice the L2 "
    "cache, at most 512 of them; warm: all launches use one copy\"\n"
    "mode: \"graph: nodes of a replayed CUDA graph, the gap between nodes included; eager: "
    "launched "
    "one by one into a stream held shut until all are queued\"\n"
    "read: \"the simulator reads the rows with cold L2 in a graph\"\n";

std::string meta(std::string_view device, const Journal& journal, const KernelRowsByName& kernels) {
  std::string text = "provider: orrery\ndevice: " + text_of(device) + "\n";
  text += kUnits;
  text += "source: orrery calibrate\nlicence: Apache-2.0\ntables:\n";
  for (const auto& [kernel, rows] : kernels) {
    text += "  " + kernel + ":\n" + meta_of_table(rows) + "    measured_with:\n";
    for (const Fact& fact : journal.facts()) {
      text += "      " + fact.name + ": " + quoted(fact.value) + "\n";
    }
  }
  return text;
}

}  // namespace

void write_tables(const fs::path& directory, std::string_view device, const Journal& journal) {
  const KernelRowsByName kernels = rows_by_kernel(journal.rows());
  for (const auto& [kernel, rows] : kernels) replace_file(directory / (kernel + ".csv"), csv(rows));
  if (!kernels.empty()) replace_file(directory / "meta.yaml", meta(device, journal, kernels));
}

std::vector<Judged> judge(const fs::path& directory, const Device& device,
                          std::span<const Row> measured) {
  std::map<std::string, std::unique_ptr<KernelTable>> tables;
  std::vector<Judged> judged;
  for (const Row& row : measured) {
    const fs::path path = directory / (row.op.kernel + ".csv");
    if (!row.refusal.empty() || !fs::exists(path)) continue;
    std::unique_ptr<KernelTable>& table = tables[row.op.kernel];
    if (!table) table = std::make_unique<KernelTable>(read_kernel_rows(path));
    std::vector<std::int64_t> dims;
    for (const DimSpec& dim : table->spec().dims)
      dims.push_back(orrery::dim(row.op.dims, dim.name));
    const auto prediction = predict(*table, device, device, row.op.dtype, 0, dims);
    if (!prediction) continue;
    judged.push_back({.op = row.op,
                      .measured = row.time,
                      .predicted = prediction->time,
                      .is_inside = prediction->basis != Basis::kRoofline});
  }
  return judged;
}

std::vector<ErrorSummary> summarise(std::span<const Judged> judged) {
  struct Errors {
    std::vector<double> inside;
    std::vector<double> outside;
  };
  std::vector<ErrorSummary> found;
  std::vector<Errors> errors;
  for (const Judged& one : judged) {
    const std::string dtype = text_of(to_text(one.op.dtype));
    auto at = std::ranges::find_if(found, [&](const ErrorSummary& summary) {
      return summary.kernel == one.op.kernel && summary.dtype == dtype;
    });
    if (at == found.end()) {
      at = found.insert(at, {.kernel = one.op.kernel, .dtype = dtype});
      errors.emplace_back();
    }
    Errors& of_dtype = errors[static_cast<std::size_t>(at - found.begin())];
    (one.is_inside ? of_dtype.inside : of_dtype.outside).push_back(std::abs(one.error()));
    if (one.is_inside) at->bias += one.error();
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    found[i].points = static_cast<int>(errors[i].inside.size());
    found[i].outside = static_cast<int>(errors[i].outside.size());
    if (found[i].points > 0) {
      found[i].bias /= found[i].points;
      found[i].median = quantile(errors[i].inside, 0.5);
      found[i].p95 = quantile(errors[i].inside, 0.95);
    }
    if (found[i].outside > 0) found[i].outside_median = quantile(errors[i].outside, 0.5);
  }
  return found;
}

std::string held_out_text(std::span<const Fact> facts, std::span<const Judged> judged) {
  std::string text = "# Interpolation of the tables against shapes that they do not hold\n";
  for (const Fact& fact : facts) text += "# " + fact.name + ": " + fact.value + "\n";
  text += print("%-20s %-9s %6s %8s %8s %8s %8s\n", "kernel", "dtype", "shapes", "median", "p95",
                "bias", "outside (median)");
  for (const ErrorSummary& summary : summarise(judged)) {
    text += print("%-20s %-9s %6d %7.1f%% %7.1f%% %+7.1f%% %8d", summary.kernel.c_str(),
                  summary.dtype.c_str(), summary.points, summary.median * 100, summary.p95 * 100,
                  summary.bias * 100, summary.outside);
    text += summary.outside > 0 ? print(" (%.1f%%)\n", summary.outside_median * 100) : "\n";
  }
  text += "\n";
  for (const Judged& one : judged) {
    text += print("%+7.1f%%  %10.2f us, predicted %10.2f us  %s%s\n", one.error() * 100,
                  one.measured.value() * 1e6, one.predicted.value() * 1e6, op_text(one.op).c_str(),
                  one.is_inside ? "" : "  (outside)");
  }
  return text;
}

}  // namespace orrery::calibrate

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "sim/cost/collectives.h"
#include "sim/cost/csv_reader.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

constexpr double kCollectiveSpread = 0.02;    // repeats of one point differ by about this
constexpr double kInterpolatedSpread = 0.08;  // held-out points, docs/data.md
constexpr double kExtrapolatedSpread = 0.2;

CollectiveKind parse_kind(const std::filesystem::path& path) {
  // all_reduce.csv, or all_reduce.<source>.csv beside it.
  const std::string file = path.filename().string();
  const std::string stem = file.substr(0, file.find('.'));
  std::string known;
  for (int i = 0; i <= static_cast<int>(CollectiveKind::kBroadcast); ++i) {
    const std::string_view name = to_text(static_cast<CollectiveKind>(i));
    if (name == stem) {
      return static_cast<CollectiveKind>(i);
    }
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  throw std::invalid_argument(path.string() + ": no collective of that name; expected one of " +
                              known);
}

int element_bytes(DType dtype) { return bytes_per_element(dtype) < 2 ? 1 : 2; }

using Samples = std::map<double, std::vector<double>>;  // times by bytes

void read(const std::filesystem::path& path, std::map<CurveKey, Samples>& samples) {
  const CollectiveKind kind = parse_kind(path);
  CsvReader csv(path);
  const int implementation = csv.require("implementation");
  const int mode = csv.require("mode");
  const int dtype = csv.require("dtype");
  const int num_gpus = csv.require("num_gpus");
  const int bytes = csv.require("bytes");
  const int time = csv.require("time_us");
  while (csv.next()) {
    CurveKey key{.kind = kind,
                 .implementation = std::string(csv.text(implementation)),
                 .mode = std::string(csv.text(mode)),
                 .element_bytes = 2,
                 .num_gpus = static_cast<int>(csv.integer(num_gpus))};
    if (key.mode != "graph" && key.mode != "eager" && key.mode != "unspecified") {
      csv.fail("column mode: found '" + shown(key.mode) +
               "'; expected graph, eager or unspecified");
    }
    if (key.num_gpus < 2) {
      csv.fail("column num_gpus: found " + std::to_string(key.num_gpus) + "; expected 2 or more");
    }
    try {
      key.element_bytes = element_bytes(parse_dtype(csv.text(dtype)));
    } catch (const std::invalid_argument& error) {
      csv.fail("column dtype: " + std::string(error.what()));
    }
    samples[key][csv.positive_number(bytes)].push_back(csv.microseconds(time).value());
  }
}

double median(std::vector<double>& values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// A curve at `bytes` with what it needs beyond its first point, the bandwidth part, times
// `stretch`.
Estimate stretched(const CollectiveCurve& curve, double bytes, double stretch) {
  Estimate estimate = curve.at(bytes);
  const Seconds latency(curve.time_s.front());
  if (stretch != 1 && estimate.time > latency) {
    estimate.time = latency + (estimate.time - latency) * stretch;
  }
  return estimate;
}

// Curve of (kind, implementation, one of two modes) at num_gpus, between measured numbers if
// needed, its bandwidth part times `stretch`.
std::optional<Estimate> along_gpus(const CollectiveTables::Tables& tables, CurveKey key,
                                   double bytes, double stretch) {
  const int wanted = key.num_gpus;
  const CollectiveCurve* below = nullptr;
  const CollectiveCurve* above = nullptr;
  int gpus_below = 0;
  int gpus_above = 0;
  key.num_gpus = 0;
  for (auto at = tables.curves.lower_bound(key); at != tables.curves.end(); ++at) {
    CurveKey same = key;
    same.num_gpus = at->first.num_gpus;
    if (at->first != same) {
      break;
    }
    if (at->first.num_gpus <= wanted) {
      below = &at->second;
      gpus_below = at->first.num_gpus;
    }
    if (at->first.num_gpus >= wanted) {
      above = &at->second;
      gpus_above = at->first.num_gpus;
      break;
    }
  }
  if (below == nullptr || above == nullptr) {
    return std::nullopt;
  }
  const Estimate low = stretched(*below, bytes, stretch);
  if (gpus_below == gpus_above) {
    return low;
  }
  const Estimate high = stretched(*above, bytes, stretch);
  const double share =
      std::log(static_cast<double>(wanted) / gpus_below) / std::log(1.0 * gpus_above / gpus_below);
  return Estimate{
      .time = Seconds(std::pow(low.time.value(), 1 - share) * std::pow(high.time.value(), share)),
      .basis = std::max({low.basis, high.basis, Basis::kInterpolated}),
      .spread = std::max({low.spread, high.spread, kInterpolatedSpread})};
}

// The same of the first source that has such a curve.
std::optional<Estimate> first_of(const CollectiveCurves& curves, const CurveKey& key,
                                 double bytes) {
  for (const CollectiveSource& source : curves.sources) {
    const double stretch = source.nvlink_rate / curves.nvlink_rate;
    std::optional<Estimate> found = along_gpus(source.tables->tables(), key, bytes, stretch);
    if (!found) {
      continue;
    }
    if (!source.is_own) {
      const bool is_equal = source.nvlink_rate == curves.nvlink_rate;
      found->basis = std::max(found->basis, is_equal ? Basis::kInterpolated : Basis::kRoofline);
      found->spread = std::max(found->spread, is_equal ? kInterpolatedSpread : kExtrapolatedSpread);
    }
    return found;
  }
  return std::nullopt;
}

// Host time in eager rows of a custom all_reduce among `num_gpus`: their smallest size.
Seconds eager_floor(const CollectiveCurves& curves, const std::string& implementation,
                    int num_gpus) {
  const CurveKey key{.kind = CollectiveKind::kAllReduce,
                     .implementation = implementation,
                     .mode = "eager",
                     .element_bytes = 2,
                     .num_gpus = num_gpus};
  for (const CollectiveSource& source : curves.sources) {
    const auto& known = source.tables->tables().curves;
    if (const auto found = known.find(key); found != known.end()) {
      return Seconds(found->second.time_s.front());
    }
  }
  return Seconds(0);
}

}  // namespace

CollectiveTables::CollectiveTables() : tables_(std::make_unique<Tables>()) {}
CollectiveTables::~CollectiveTables() = default;
CollectiveTables::CollectiveTables(CollectiveTables&&) noexcept = default;
CollectiveTables& CollectiveTables::operator=(CollectiveTables&&) noexcept = default;

CollectiveTables CollectiveTables::load(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw std::invalid_argument(directory.string() +
                                ": not a directory; expected one with <collective>.csv files");
  }
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() == ".csv") {
      files.push_back(file.path());
    }
  }
  if (files.empty()) {
    throw std::invalid_argument(directory.string() +
                                ": found no CSV file; expected <collective>.csv");
  }
  std::ranges::sort(files);
  std::map<CurveKey, Samples> samples;
  for (const std::filesystem::path& file : files) {
    read(file, samples);
  }
  CollectiveTables tables;
  tables.tables_->name = directory.filename().string();
  for (auto& [key, points] : samples) {
    CollectiveCurve& curve = tables.tables_->curves[key];
    for (auto& [bytes, times] : points) {
      curve.bytes.push_back(bytes);
      curve.time_s.push_back(median(times));
    }
  }
  return tables;
}

Estimate CollectiveCurve::at(double size) const {
  const auto above = std::ranges::lower_bound(bytes, size);
  if (above == bytes.end()) {
    return {.time = Seconds(time_s.back() * size / bytes.back()),
            .basis = Basis::kRoofline,
            .spread = kExtrapolatedSpread};
  }
  const auto i = static_cast<std::size_t>(above - bytes.begin());
  if (*above == size) {
    return {.time = Seconds(time_s[i]), .basis = Basis::kMeasured, .spread = kCollectiveSpread};
  }
  if (i == 0) {
    return {.time = Seconds(time_s[0]), .basis = Basis::kRoofline, .spread = kExtrapolatedSpread};
  }
  const double share = std::log(size / bytes[i - 1]) / std::log(bytes[i] / bytes[i - 1]);
  return {.time = Seconds(std::pow(time_s[i - 1], 1 - share) * std::pow(time_s[i], share)),
          .basis = Basis::kInterpolated,
          .spread = kInterpolatedSpread};
}

double table_bytes(const CommOp& op, int num_ranks) {
  return op.bytes_per_rank.value() * (op.kind == CollectiveKind::kAllGather ? num_ranks : 1);
}

std::optional<Estimate> measured_collective(const CollectiveCurves& curves, const CommOp& op,
                                            int num_gpus, const CostOptions& options) {
  const double bytes = table_bytes(op, num_gpus);
  const std::string_view mode = to_text(options.launch_mode);
  const auto look_up = [&](const std::string& implementation,
                           std::string_view key_mode) -> std::optional<Estimate> {
    CurveKey key{.kind = op.kind,
                 .implementation = implementation,
                 .mode = std::string(key_mode),
                 .element_bytes = element_bytes(op.dtype),
                 .num_gpus = num_gpus};
    std::optional<Estimate> found = first_of(curves, key, bytes);
    if (!found) {
      // A copy does not care for the width of elements.
      key.element_bytes = key.element_bytes == 1 ? 2 : 1;
      found = first_of(curves, key, bytes);
    }
    return found;
  };
  // Rows of a replayed graph hold the same kernel without the host, whose launch is priced apart.
  const auto of = [&](const std::string& implementation) {
    std::optional<Estimate> found = look_up(implementation, mode);
    for (const std::string_view other : {"unspecified", "graph"}) {
      found = found ? found : look_up(implementation, other);
    }
    return found;
  };
  const bool is_all_reduce = op.kind == CollectiveKind::kAllReduce;
  const std::string& wanted = options.all_reduce_implementation;
  if (!is_all_reduce || wanted == "nccl") {
    return of("nccl");
  }
  // An engine whose own kernel does not serve this number of GPUs takes NCCL.
  const std::optional<Estimate> custom = of(options.custom_all_reduce);
  if (custom && wanted == "custom") {
    return custom;
  }
  std::optional<Estimate> nccl = of("nccl");
  if (custom && nccl && options.launch_mode == LaunchMode::kEager) {
    nccl->time = std::max(nccl->time, eager_floor(curves, options.custom_all_reduce, num_gpus));
  }
  if (!custom || (nccl && nccl->time < custom->time)) {
    return nccl;
  }
  return custom;
}

std::optional<Estimate> measured_copies(const CollectiveCurves& curves, Bytes bytes,
                                        const CostOptions& options) {
  const double size = bytes.value();
  const auto key = [&](std::string_view mode) {
    return CurveKey{.kind = CollectiveKind::kSendRecv,
                    .implementation = options.custom_all_reduce + "_copies",
                    .mode = std::string(mode),
                    .element_bytes = 2,
                    .num_gpus = 2};
  };
  std::optional<Estimate> found = first_of(curves, key(to_text(options.launch_mode)), size);
  if (!found || options.launch_mode == LaunchMode::kEager) return found;
  // Captured or not, the copy itself takes as long: beyond the rows of graphs it grows as eager.
  for (const CollectiveSource& source : curves.sources) {
    const auto& known = source.tables->tables().curves;
    const auto graph = known.find(key(to_text(LaunchMode::kGraph)));
    if (graph == known.end()) continue;
    const double last = graph->second.bytes.back();
    const std::optional<Estimate> eager =
        first_of(curves, key(to_text(LaunchMode::kEager)), std::max(size, last));
    const std::optional<Estimate> from = first_of(curves, key(to_text(LaunchMode::kEager)), last);
    if (size <= last || !eager || !from) return found;
    const Seconds at_last = first_of(curves, graph->first, last)->time;
    return Estimate{.time = at_last + (eager->time - from->time),
                    .basis = std::max(Basis::kInterpolated, eager->basis),
                    .spread = std::max(kInterpolatedSpread, eager->spread)};
  }
  return found;
}

}  // namespace orrery

// Error of the model on measured points that it was not given.

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "sim/cost/collectives.h"
#include "sim/cost/interpolate.h"
#include "sim/cost/provider_tables.h"

namespace orrery {
namespace {

// Fixed hash to [0, 1): the same rows are held out on every machine.
class HashedShare {
 public:
  void add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x100000001B3ULL;
    state_ ^= state_ >> 29;
  }
  [[nodiscard]] double value() const {
    const std::uint64_t mixed = (state_ * 0x9E3779B97F4A7C15ULL) ^ (state_ >> 31);
    return static_cast<double>((mixed * 0xBF58476D1CE4E5B9ULL) >> 11) * 0x1p-53;
  }

 private:
  std::uint64_t state_ = 0xCBF29CE484222325ULL;
};

struct Errors {
  std::vector<double> relative;  // (predicted - measured) / measured

  [[nodiscard]] HeldOutError summary(std::string kernel, std::string dtype) const {
    HeldOutError result{.kernel = std::move(kernel), .dtype = std::move(dtype)};
    result.num_points = static_cast<std::int64_t>(relative.size());
    std::vector<double> absolute;
    for (const double error : relative) {
      absolute.push_back(std::abs(error));
      result.bias += error / static_cast<double>(relative.size());
    }
    std::ranges::sort(absolute);
    const auto quantile = [&](double share) {
      const auto last = static_cast<double>(absolute.size() - 1);
      return absolute[static_cast<std::size_t>(std::lround(share * last))];
    };
    result.median = quantile(0.5);
    result.p95 = quantile(0.95);
    return result;
  }
};

// Whether a dim stays fixed within one held-out unit.
std::vector<bool> dims_of_unit(const KernelSpec& spec, HeldOutUnit unit) {
  std::vector<bool> counts(spec.dims.size(), true);
  if (unit == HeldOutUnit::kShape) {
    const GridLayout layout = grid_layout(spec);
    const int num_free = layout.num_axes - spec.prior.grid.shape_axes;
    for (int a = 0; a < num_free; ++a) {
      counts[layout.axes[a]] = false;
    }
  }
  return counts;
}

// Rows of the unit that the hash draws.
std::function<bool(std::int64_t)> draw(const KernelRows& rows, double share, HeldOutUnit unit) {
  return [&rows, share, counts = dims_of_unit(*rows.spec, unit)](std::int64_t row) {
    HashedShare hash;
    hash.add(static_cast<std::uint64_t>(rows.dtype[row]));
    hash.add(rows.distribution[row]);
    const std::span<const std::int64_t> dims = rows.row_dims(row);
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (counts[i]) {
        hash.add(static_cast<std::uint64_t>(dims[i]));
      }
    }
    return hash.value() < share;
  };
}

// What is predicted for row `row` of `rows`, if anything.
using Predict = std::function<std::optional<Prediction>(std::int64_t row)>;

// Errors of `predict` on the rows for which `is_scored`, by dtype.
void score_rows(const KernelRows& rows, const Device& device,
                const std::function<bool(std::int64_t)>& is_scored, const Predict& predicted,
                std::vector<HeldOutError>& results) {
  // The answer of the full table: the fastest of the rows of a point, and not a host-bound one.
  const KernelTable all(rows);
  std::map<DType, Errors> errors;
  for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
    if (rows.host_bound[row] != 0 || !is_scored(row)) {
      continue;
    }
    const DType dtype = rows.dtype[row];
    const auto truth =
        predict(all, device, device, dtype, rows.distribution[row], rows.row_dims(row));
    const auto guess = predicted(row);
    if (guess && truth && truth->basis == Basis::kMeasured) {
      errors[dtype].relative.push_back(guess->time / truth->time - 1);
    }
  }
  for (const auto& [dtype, scored] : errors) {
    results.push_back(scored.summary(std::string(rows.spec->name), std::string(to_text(dtype))));
  }
}

// Rows of a table, as its provider takes them.
KernelRows rows_of(const Provider& provider, const std::string& kernel,
                   const std::filesystem::path& path) {
  KernelRows rows = read_kernel_rows(path);
  rows.is_own = provider.tables().table(kernel)->is_own();
  return rows;
}

void score_kernel(const Device& device, const KernelRows& rows, double share, HeldOutUnit unit,
                  std::vector<HeldOutError>& results) {
  const auto is_held_out = draw(rows, share, unit);
  const KernelTable known(rows, [&](std::int64_t row) { return !is_held_out(row); });
  const auto from_known = [&](std::int64_t row) {
    return predict(known, device, device, rows.dtype[row], rows.distribution[row],
                   rows.row_dims(row));
  };
  score_rows(rows, device, is_held_out, from_known, results);
}

void score_collectives(const CollectiveTables::Tables& tables, double share,
                       std::vector<HeldOutError>& results) {
  std::map<std::pair<CollectiveKind, std::string>, Errors> errors;
  for (const auto& [key, curve] : tables.curves) {
    CollectiveCurve known;
    std::vector<std::size_t> held_out;
    for (std::size_t i = 0; i < curve.bytes.size(); ++i) {
      HashedShare hash;
      hash.add(static_cast<std::uint64_t>(key.kind));
      hash.add(key.implementation.size());
      hash.add(key.mode.size());
      hash.add(static_cast<std::uint64_t>(key.element_bytes));
      hash.add(static_cast<std::uint64_t>(key.num_gpus));
      hash.add(static_cast<std::uint64_t>(curve.bytes[i]));
      if (hash.value() < share) {
        held_out.push_back(i);
      } else {
        known.bytes.push_back(curve.bytes[i]);
        known.time_s.push_back(curve.time_s[i]);
      }
    }
    for (const std::size_t i : held_out) {
      if (known.bytes.empty()) {
        break;
      }
      const std::string name =
          key.implementation + (key.mode == "unspecified" ? "" : " " + key.mode);
      errors[{key.kind, name}].relative.push_back(
          known.at(curve.bytes[i]).time.value() / curve.time_s[i] - 1);
    }
  }
  for (const auto& [key, scored] : errors) {
    results.push_back(scored.summary(std::string(to_text(key.first)), key.second));
  }
}

}  // namespace

std::vector<HeldOutError> held_out_errors(const Machine& machine, const Provider& provider,
                                          const CollectiveTables* collectives,
                                          double held_out_share, HeldOutUnit unit) {
  if (!(held_out_share > 0 && held_out_share < 1)) {
    throw std::invalid_argument("held_out_share is " + std::to_string(held_out_share) +
                                "; expected between 0 and 1");
  }
  std::vector<HeldOutError> results;
  for (const auto& [kernel, entry] : provider.tables().entries) {
    score_kernel(machine.device(), rows_of(provider, kernel, entry->path), held_out_share, unit,
                 results);
  }
  if (collectives != nullptr && unit == HeldOutUnit::kRow) {
    score_collectives(collectives->tables(), held_out_share, results);
  }
  return results;
}

std::vector<HeldOutError> transfer_errors(const KernelSource& measured,
                                          const KernelSource& stand_in) {
  constexpr double kShare = 0.1;
  std::vector<HeldOutError> results;
  for (const auto& [kernel, entry] : measured.provider->tables().entries) {
    const KernelTable* table = stand_in.provider->tables().table(kernel);
    if (table == nullptr) {
      continue;
    }
    const KernelRows rows = rows_of(*measured.provider, kernel, entry->path);
    const auto from_stand_in = [&](std::int64_t row) -> std::optional<Prediction> {
      int distribution = 0;
      if (!rows.distributions.empty()) {
        const auto& names = table->distributions();
        const auto same = std::ranges::find(names, rows.distributions[rows.distribution[row]]);
        if (same == names.end()) {
          return std::nullopt;
        }
        distribution = static_cast<int>(same - names.begin());
      }
      return predict(*table, *stand_in.device, *measured.device, rows.dtype[row], distribution,
                     rows.row_dims(row));
    };
    score_rows(rows, *measured.device, draw(rows, kShare, HeldOutUnit::kRow), from_stand_in,
               results);
  }
  return results;
}

}  // namespace orrery

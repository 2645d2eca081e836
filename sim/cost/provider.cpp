#include <algorithm>
#include <stdexcept>

#include "sim/cost/csv_reader.h"
#include "sim/cost/provider_tables.h"
#include "sim/units/shown.h"

namespace orrery {

namespace {

constexpr std::string_view kInclusionsFile = "includes";
constexpr std::string_view kBackendsFile = "backends";

// While a GEMM of more than 5 ms is timed the board comes to its power limit: its row is of no
// clock. So are those from 3.5 ms on that spread, by 16 % between both clocks.
constexpr double kLong = 5e-3;
constexpr double kLongOfSpread = 3.5e-3;
constexpr double kSpreadOfClocks = 0.05;

bool is_of_one_clock(const KernelRows& rows, std::int64_t row) {
  const double time = rows.time_s[row];
  return time <= kLongOfSpread || (time <= kLong && rows.spread[row] <= kSpreadOfClocks);
}

std::vector<Provider::Tables::Inclusion> read_inclusions(const std::filesystem::path& path) {
  CsvReader reader(path);
  const int kernel = reader.require("kernel");
  const int dtype = reader.require("dtype");
  const int included = reader.require("includes");
  const int floor = reader.require("floor_us");
  std::vector<Provider::Tables::Inclusion> inclusions;
  while (reader.next()) {
    for (const int column : {kernel, included}) {
      if (find_kernel_spec(reader.text(column)) == nullptr) {
        reader.fail("found kernel '" + shown(reader.text(column)) + "'; expected a known one");
      }
    }
    Provider::Tables::Inclusion inclusion{.kernel = std::string(reader.text(kernel)),
                                          .included = std::string(reader.text(included))};
    if (reader.text(dtype) != "any") {
      try {
        inclusion.dtype = parse_dtype(reader.text(dtype));
      } catch (const std::invalid_argument& error) {
        reader.fail(error.what());
      }
    }
    if (reader.text(floor) != "0") {
      inclusion.floor = Seconds(reader.positive_number(floor) * 1e-6);
    }
    inclusions.push_back(std::move(inclusion));
  }
  return inclusions;
}

std::vector<Provider::Tables::Backend> read_backends(const std::filesystem::path& path) {
  CsvReader reader(path);
  const int kernel = reader.require("kernel");
  const int dtype = reader.require("dtype");
  const int source = reader.require("source");
  const int name = reader.require("backend");
  std::vector<Provider::Tables::Backend> backends;
  while (reader.next()) {
    if (find_kernel_spec(reader.text(kernel)) == nullptr) {
      reader.fail("found kernel '" + shown(reader.text(kernel)) + "'; expected a known one");
    }
    if (std::ranges::find(kMoeBackends, reader.text(name)) == kMoeBackends.end()) {
      std::string known;
      for (const std::string_view one : kMoeBackends) {
        known += (known.empty() ? "" : ", ") + std::string(one);
      }
      reader.fail("found backend '" + shown(reader.text(name)) + "'; expected one of " + known);
    }
    Provider::Tables::Backend backend{.kernel = std::string(reader.text(kernel)),
                                      .source = reader.integer(source),
                                      .name = std::string(reader.text(name))};
    try {
      backend.dtype = parse_dtype(reader.text(dtype));
    } catch (const std::invalid_argument& error) {
      reader.fail(error.what());
    }
    backends.push_back(std::move(backend));
  }
  return backends;
}

}  // namespace

Provider::Provider() : tables_(std::make_unique<Tables>()) {}
Provider::~Provider() = default;
Provider::Provider(Provider&&) noexcept = default;
Provider& Provider::operator=(Provider&&) noexcept = default;

Provider Provider::load(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw std::invalid_argument(directory.string() +
                                ": not a directory; expected one with <kernel>.csv files");
  }
  Provider provider;
  provider.tables_->name = directory.filename().string();
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".csv") {
      continue;
    }
    const std::string kernel = file.path().stem().string();
    if (kernel == kInclusionsFile) {
      provider.tables_->inclusions = read_inclusions(file.path());
      continue;
    }
    if (kernel == kBackendsFile) {
      provider.tables_->backends = read_backends(file.path());
      continue;
    }
    if (find_kernel_spec(kernel) == nullptr) {
      throw std::invalid_argument(file.path().string() +
                                  ": no kernel of that name; expected <kernel>.csv");
    }
    auto entry = std::make_unique<Tables::Entry>();
    entry->path = file.path();
    provider.tables_->entries.emplace(kernel, std::move(entry));
  }
  if (provider.tables_->entries.empty()) {
    throw std::invalid_argument(directory.string() + ": found no CSV file; expected <kernel>.csv");
  }
  for (const Tables::Backend& backend : provider.tables_->backends) {
    const auto whole = provider.tables_->entries.find(backend.kernel);
    if (whole == provider.tables_->entries.end()) continue;
    auto& entry = provider.tables_->of_backends[{backend.kernel, backend.name}];
    if (entry == nullptr) entry = std::make_unique<Tables::Entry>();
    entry->path = whole->second->path;
  }
  return provider;
}

const std::string& Provider::name() const { return tables_->name; }

bool Provider::has_kernel(std::string_view kernel) const {
  return tables_->entries.find(kernel) != tables_->entries.end();
}

std::vector<std::string> Provider::kernels() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tables_->entries) {
    names.push_back(name);
  }
  return names;
}

std::int64_t Provider::num_rows(std::string_view kernel) const {
  return tables_->table(kernel) == nullptr ? 0 : tables_->entries.find(kernel)->second->num_rows;
}

std::set<std::string> Provider::backends(std::string_view kernel, DType dtype) const {
  std::set<std::string> names;
  for (const Tables::Backend& backend : tables_->backends) {
    if (backend.kernel == kernel && backend.dtype == dtype) names.insert(backend.name);
  }
  return names;
}

const Provider::Tables::Inclusion* Provider::Tables::quantizing(std::string_view kernel,
                                                                DType dtype) const {
  const auto found = std::ranges::find_if(inclusions, [&](const Inclusion& inclusion) {
    return inclusion.kernel == kernel && inclusion.dtype.value_or(dtype) == dtype &&
           kernel_spec(inclusion.included).prior.quantizes;
  });
  return found == inclusions.end() ? nullptr : &*found;
}

bool Provider::Tables::is_paid_elsewhere(std::string_view included, DType dtype) const {
  return std::ranges::any_of(inclusions, [&](const Inclusion& inclusion) {
    return inclusion.included == included && inclusion.floor.value() == 0 &&
           inclusion.dtype.value_or(dtype) == dtype;
  });
}

const KernelTable* Provider::Tables::table(std::string_view kernel) const {
  const auto found = entries.find(kernel);
  if (found == entries.end()) {
    return nullptr;
  }
  Entry& entry = *found->second;
  std::call_once(entry.once, [&entry, this] {
    KernelRows rows = read_kernel_rows(entry.path);
    rows.is_own = name == kOwnProvider;
    const bool leaves_out = rows.is_own && rows.spec->prior.grid.is_flat_for_long_calls;
    entry.table = std::make_unique<KernelTable>(
        rows, [&](std::int64_t row) { return !leaves_out || is_of_one_clock(rows, row); });
    entry.num_rows = rows.num_rows();
  });
  return entry.table.get();
}

const KernelTable* Provider::Tables::table(std::string_view kernel,
                                           std::string_view backend) const {
  if (backend.empty()) return table(kernel);
  const auto found = of_backends.find(std::pair(std::string(kernel), std::string(backend)));
  if (found == of_backends.end()) return nullptr;
  Entry& entry = *found->second;
  std::call_once(entry.once, [&] {
    const KernelRows rows = read_kernel_rows(entry.path);
    const auto is_of_backend = [&](std::int64_t row) {
      return std::ranges::any_of(backends, [&](const Backend& one) {
        return one.kernel == kernel && one.name == backend && one.dtype == rows.dtype[row] &&
               one.source == rows.source[row];
      });
    };
    entry.table = std::make_unique<KernelTable>(rows, is_of_backend);
    entry.num_rows = rows.num_rows();
  });
  return entry.table.get();
}

}  // namespace orrery

// Which measured tables stand in for others, and tables that are shared by all runs of a process.

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "sim/cost/cost.h"
#include "sim/cost/provider_tables.h"

namespace orrery {
namespace {

// A directory's newest CSV file, so that tables that changed on disk are read again.
std::filesystem::file_time_type newest_table(const std::filesystem::path& directory) {
  auto newest = std::filesystem::file_time_type::min();
  std::error_code error;  // `load` reports a directory that cannot be read
  for (const auto& file : std::filesystem::directory_iterator(directory, error)) {
    if (file.path().extension() == ".csv") {
      newest = std::max(newest, file.last_write_time());
    }
  }
  return newest;
}

// Held when tables are looked up and loaded, the maps below made. fork() waits for it: a child
// would find it locked, or a map being made, for ever by a thread that only its parent has.
std::mutex tables_mutex;
[[maybe_unused]] const int kForksWait = pthread_atfork(
    [] { tables_mutex.lock(); }, [] { tables_mutex.unlock(); }, [] { tables_mutex.unlock(); });

template <typename Tables>
std::shared_ptr<const Tables> shared(const std::filesystem::path& directory) {
  using Key = std::pair<std::filesystem::path, std::filesystem::file_time_type>;
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(directory);
  const std::lock_guard lock(tables_mutex);
  static std::map<Key, std::shared_ptr<const Tables>> loaded;
  std::shared_ptr<const Tables>& tables = loaded[{canonical, newest_table(canonical)}];
  if (tables == nullptr) {
    tables = std::make_shared<const Tables>(Tables::load(canonical));
  }
  return tables;
}

// A device file may have been edited since tables of that device were measured.
bool has_rates_of(const Device& device, const Device& other) {
  const auto is_equal = [&](const auto& rate) {
    const auto found = other.dense_flops.find(rate.first);
    return found == other.dense_flops.end() || found->second == rate.second;
  };
  return device.hbm_bandwidth == other.hbm_bandwidth &&
         std::ranges::all_of(device.dense_flops, is_equal);
}

double log_ratio(double a, double b) { return std::abs(std::log(a / b)); }

}  // namespace

std::shared_ptr<const Provider> shared_provider(const std::filesystem::path& directory) {
  return shared<Provider>(directory);
}

std::shared_ptr<const CollectiveTables> shared_collectives(const std::filesystem::path& directory) {
  return shared<CollectiveTables>(directory);
}

std::string_view to_text(Origin origin) {
  constexpr std::array<std::string_view, 7> kNames = {"own",
                                                      "sibling",
                                                      "other provider",
                                                      "other provider on sibling",
                                                      "other architecture",
                                                      "other provider and architecture",
                                                      "none"};
  return kNames.at(static_cast<std::size_t>(origin));
}

Origin origin(std::string_view provider, const Device& device, std::string_view measured_provider,
              const Device& measured_on) {
  const bool is_asked = provider == measured_provider;
  // Our kernels are not what an engine runs: they answer for plans that name them alone.
  if (!is_asked && measured_provider == kOwnProvider) return Origin::kNone;
  if (device.name == measured_on.name && !has_rates_of(device, measured_on)) {
    return is_asked ? Origin::kSibling : Origin::kOtherProviderOnSibling;
  }
  if (device.name == measured_on.name) {
    return is_asked ? Origin::kOwn : Origin::kOtherProvider;
  }
  if (!device.architecture.empty() && device.architecture == measured_on.architecture) {
    return is_asked ? Origin::kSibling : Origin::kOtherProviderOnSibling;
  }
  if (!device.vendor.empty() && device.vendor == measured_on.vendor) {
    return is_asked ? Origin::kOtherArchitecture : Origin::kOtherProviderAndArchitecture;
  }
  return Origin::kNone;
}

double device_distance(const Device& a, const Device& b) {
  const auto peak = [](const Device& device) {
    const auto found = device.dense_flops.find(DType::kBf16);
    return found == device.dense_flops.end() ? 1.0 : found->second.value();
  };
  return log_ratio(peak(a), peak(b)) + log_ratio(a.hbm_bandwidth.value(), b.hbm_bandwidth.value());
}

}  // namespace orrery

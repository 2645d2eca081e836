#include "sim/scenario/measured_tables.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "sim/scenario/machine_file.h"
#include "sim/units/parse.h"

namespace orrery {

namespace {

namespace fs = std::filesystem;

bool has_table(const fs::path& directory) {
  std::error_code error;  // a directory that is not there has none
  const fs::directory_iterator files(directory, error);
  return std::any_of(begin(files), end(files),
                     [](const auto& file) { return file.path().extension() == ".csv"; });
}

// Directories right below `directory`, ascending.
std::vector<fs::path> folders(const fs::path& directory) {
  std::vector<fs::path> found;
  std::error_code error;  // a directory that is not there has none
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.is_directory()) {
      found.push_back(entry.path());
    }
  }
  std::ranges::sort(found);
  return found;
}

// Every provider's directory with the device that it was measured on.
std::vector<KernelDirectory> all_kernel_directories(const fs::path& topologies) {
  std::vector<KernelDirectory> found;
  for (const fs::path& device_directory : folders(topologies / "devices")) {
    std::vector<fs::path> providers = folders(device_directory);
    std::erase_if(providers, [](const fs::path& path) { return !has_table(path); });
    if (providers.empty()) {
      continue;
    }
    const Device device = read_measured_device(device_directory);
    for (fs::path& path : providers) {
      std::string name = path.filename().string();
      found.push_back({.path = std::move(path), .provider = std::move(name), .device = device});
    }
  }
  return found;
}

template <typename Quantity>
void compare(const std::string& field, Quantity measured, Quantity asked,
             std::vector<std::string>& found) {
  if (measured == asked) return;
  found.push_back(field + " " + to_text(asked) + " (measured: " + to_text(measured) + ")");
}

// The tables that the machine file names, moved to its NVLink rate where that is another.
CollectiveDirectory own_collectives(const fs::path& topologies, const MachineSpec& spec,
                                    const fs::path& path) {
  CollectiveDirectory own{.path = path, .machine = spec.name, .nvlink_rate = spec.nvlink_rate};
  const auto measured = read_measured_links(path, topologies);
  if (!measured) return own;
  compare("nvlink_rate", measured->nvlink_rate, spec.nvlink_rate, own.differences);
  compare("nvlink_latency", measured->nvlink_latency, spec.nvlink_latency, own.differences);
  own.nvlink_rate = measured->nvlink_rate;
  own.is_own = own.differences.empty();
  return own;
}

// The numbers of a version, negated: of "vllm-0.24.0" 0, -24, 0.
std::vector<int> newest_first(std::string_view name) {
  std::vector<int> numbers;
  for (std::size_t at = name.find_first_of("0123456789"); at != std::string_view::npos;
       at = name.find_first_of("0123456789", at)) {
    int number = 0;
    const auto [end, error] = std::from_chars(name.data() + at, name.data() + name.size(), number);
    numbers.push_back(error == std::errc() ? -number : 0);
    at = static_cast<std::size_t>(end - name.data());
  }
  return numbers;
}

}  // namespace

std::vector<std::string> differences(const Device& measured, const Device& asked) {
  std::vector<std::string> found;
  compare("hbm_bandwidth", measured.hbm_bandwidth, asked.hbm_bandwidth, found);
  for (const auto& [dtype, rate] : asked.dense_flops) {
    const auto known = measured.dense_flops.find(dtype);
    if (known != measured.dense_flops.end()) {
      compare("dense_flops." + std::string(to_text(dtype)), known->second, rate, found);
    }
  }
  return found;
}

std::vector<KernelDirectory> kernel_directories(const fs::path& topologies,
                                                std::string_view provider, const Device& device) {
  std::vector<KernelDirectory> found = all_kernel_directories(topologies);
  for (KernelDirectory& directory : found) {
    directory.origin = origin(provider, device, directory.provider, directory.device);
  }
  std::erase_if(found,
                [](const KernelDirectory& directory) { return directory.origin == Origin::kNone; });
  const auto order = [&](const KernelDirectory& directory) {
    return std::tuple(directory.origin, device_distance(device, directory.device),
                      directory.device.name, directory.provider);
  };
  std::ranges::sort(found, {}, order);
  return found;
}

std::vector<std::string> usable_providers(const fs::path& topologies, const Device& device) {
  std::set<std::string> names;
  for (const KernelDirectory& directory : all_kernel_directories(topologies)) {
    if (origin(directory.provider, device, directory.provider, directory.device) != Origin::kNone) {
      names.insert(directory.provider);
    }
  }
  return {names.begin(), names.end()};
}

std::string default_provider(const fs::path& topologies, const Device& device,
                             std::string_view profile) {
  const std::string engine(profile.substr(0, profile.find('_')));
  std::string chosen;
  std::tuple<double, std::vector<int>> best;  // distance, version negated
  for (const KernelDirectory& directory : all_kernel_directories(topologies)) {
    const std::string& name = directory.provider;
    // "sglang-0.5.10-deepep-normal" has exchanges of experts alone.
    const bool is_version =
        name.starts_with(engine + "-") && name.find('-', engine.size() + 1) == std::string::npos;
    if ((name != engine && !is_version) ||
        origin(name, device, name, directory.device) == Origin::kNone) {
      continue;
    }
    std::tuple rank(device_distance(device, directory.device), newest_first(name));
    if (chosen.empty() || rank < best) {
      best = std::move(rank);
      chosen = name;
    }
  }
  return chosen;
}

std::vector<CollectiveDirectory> collective_directories(const fs::path& topologies,
                                                        const MachineSpec& spec,
                                                        const fs::path& own) {
  std::vector<std::pair<std::tuple<double, double, std::string>, CollectiveDirectory>> others;
  for (const fs::path& path : folders(topologies)) {
    const fs::path file = path.string() + ".yaml";
    if (path == own || !has_table(path) || !fs::exists(file)) {
      continue;
    }
    MachineSpec other = read_machine(file, topologies).spec;
    if (const auto measured = read_measured_links(path, topologies)) {
      other.nvlink_rate = measured->nvlink_rate;
    }
    if (origin("", spec.device, "", other.device) == Origin::kNone ||
        !(spec.nvlink_rate.value() > 0 && other.nvlink_rate.value() > 0)) {
      continue;
    }
    others.push_back({{std::abs(std::log(spec.nvlink_rate / other.nvlink_rate)),
                       device_distance(spec.device, other.device), other.name},
                      {.path = path,
                       .machine = other.name,
                       .nvlink_rate = other.nvlink_rate,
                       .is_own = false,
                       .differences = {}}});
  }
  std::ranges::sort(others, {}, [](const auto& item) { return item.first; });
  std::vector<CollectiveDirectory> found;
  if (!own.empty()) {
    found.push_back(own_collectives(topologies, spec, own));
  }
  for (auto& [order, directory] : others) {
    found.push_back(std::move(directory));
  }
  return found;
}

fs::path links_table(std::span<const CollectiveDirectory> tables, std::string_view name) {
  if (tables.empty() || !tables.front().is_own) return {};
  fs::path file = tables.front().path / "links" / name;
  return fs::exists(file) ? file : fs::path();
}

}  // namespace orrery

#include "sim/scenario/machine_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "sim/scenario/check_keys.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/reader.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

constexpr std::string_view kMeasuredOn = "measured_on.yaml";
constexpr std::string_view kDeviceFile = "device.yaml";

std::map<DType, FlopsPerSecond> read_dense_flops(const YamlNode& node,
                                                 std::map<std::string, std::string>& sources) {
  const std::string path = "dense_flops";
  Reader reader(node, path, key_names("dense_flops"));
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  std::map<DType, FlopsPerSecond> flops;
  for (const YamlNode::Entry& entry : node.entries) {
    flops[parse_dtype(entry.key)] = reader.flops_per_second(entry.key);
  }
  for (const auto& [key, source] : own) {
    sources[std::string(path).append(".").append(key)] = source;
  }
  return flops;
}

// sms_for_hbm is a number of the device's SMs, bf16_under_power_limit a rate.
SharingRates read_sharing(const YamlNode& node, const Device& device,
                          std::map<std::string, std::string>& sources) {
  const std::string path = "sharing";
  Reader reader(node, path, key_names("sharing"));
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  SharingRates rates;
  rates.hbm_rate = reader.bytes_per_second("hbm_rate");
  if (device.num_sms == 0) reader.fail("sms_for_hbm", "this needs the device's num_sms");
  rates.sms_for_hbm =
      static_cast<double>(reader.integer("sms_for_hbm", 1, device.num_sms)) / device.num_sms;
  const auto peak = device.dense_flops.find(DType::kBf16);
  if (peak == device.dense_flops.end()) {
    reader.fail("bf16_under_power_limit", "this needs the device's dense_flops of bf16");
  }
  rates.math_share = reader.flops_per_second("bf16_under_power_limit") / peak->second;
  const auto read = [&](const std::string& name, double least, double most, double& rate) {
    if (reader.has(name)) rate = reader.number(name, least, most);
  };
  read("waited_collective", 1, 10, rates.waited_collective);
  read("loaded_collective", 1, 10, rates.loaded_collective);
  read("beside_collective", 0.01, 10, rates.beside_collective);
  for (const auto& [key, source] : own) {
    sources[std::string(path).append(".").append(key)] = source;
  }
  return rates;
}

// Waiting, moved bytes and arithmetic of an H100 and an H200 over their power limit (power.csv of
// topologies/devices/h100-sxm and h200-sxm), and how far another device may be off.
constexpr double kWaitingShare = 0.18;
constexpr double kHbmShare = 0.75;
constexpr double kArithmeticShare = 1.54;
constexpr double kErrorOfShares = 0.3;

BoardPower read_power(const YamlNode& node, Watts tdp,
                      std::map<std::string, std::string>& sources) {
  const std::string path = "power";
  Reader reader(node, path, key_names("power"));
  std::map<std::string, std::string> own;
  reader.collect_sources(&own);
  const BoardPower power{.waiting = reader.watts("waiting"),
                         .hbm = reader.watts("hbm"),
                         .arithmetic = reader.watts("arithmetic"),
                         .error = reader.number("error", 0, 1)};
  if (tdp > Watts(0) && power.waiting >= tdp) {
    reader.fail("waiting", "found " + format_number(power.waiting.value()) +
                               " W, at or above the tdp of " + format_number(tdp.value()) + " W");
  }
  for (const auto& [key, source] : own) {
    sources[std::string(path).append(".").append(key)] = source;
  }
  return power;
}

std::vector<std::string> sorted_names(const std::filesystem::path& directory, bool directories) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (directories ? entry.is_directory() : entry.path().extension() == ".yaml") {
      names.push_back(entry.path().stem().string());
      if (directories) {
        names.back() = entry.path().filename().string();  // "vllm-0.24.0" has no extension
      }
    }
  }
  std::ranges::sort(names);
  return names;
}

std::string known(const std::string& found, const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return views.empty() ? "; there are none"
                       : "; did you mean '" + nearest(found, views) + "'? Known: " + text;
}

}  // namespace

namespace {

// `path` names the mapping in messages.
Device device_of(const YamlNode& root, const std::string& path) {
  Reader reader(root, path, key_names("device"));
  Device device;
  reader.collect_sources(&device.sources);
  device.name = reader.text("name");
  device.vendor = reader.text("vendor");
  device.architecture = reader.text("architecture");
  device.hbm_capacity = reader.bytes("hbm_capacity");
  device.hbm_bandwidth = reader.bytes_per_second("hbm_bandwidth");
  device.dense_flops = read_dense_flops(reader.at("dense_flops"), device.sources);
  if (reader.has("num_sms")) {
    device.num_sms = static_cast<int>(reader.integer("num_sms", 1, 100'000));
  }
  if (reader.has("sharing")) {
    device.sharing = read_sharing(reader.at("sharing"), device, device.sources);
  }
  if (reader.has("tdp")) {
    device.tdp = reader.watts("tdp");
    device.power = {.waiting = device.tdp * kWaitingShare,
                    .hbm = device.tdp * kHbmShare,
                    .arithmetic = device.tdp * kArithmeticShare,
                    .error = kErrorOfShares,
                    .is_own = false};
  }
  if (reader.has("power"))
    device.power = read_power(reader.at("power"), device.tdp, device.sources);
  if (reader.has("usd_per_hour")) {
    device.usd_per_hour = reader.number("usd_per_hour", 0);
  }
  return device;
}

// The `device` of a machine file, and where its tables would be.
void read_device_of(const Reader& reader, const std::filesystem::path& file,
                    const std::filesystem::path& topologies, MachineFile& machine) {
  const std::filesystem::path devices = topologies / "devices";
  const auto of_name = [&](const Reader& place, std::string_view key) {
    const std::string name = place.text(key);
    if (!std::filesystem::exists(devices / name / kDeviceFile)) {
      place.fail(key,
                 "unknown device '" + shown(name) + "'" + known(name, sorted_names(devices, true)));
    }
    return devices / name;
  };
  if (const YamlNode& given = reader.at("device"); given.kind == YamlNode::Kind::kMap) {
    YamlNode node = given;
    if (const YamlNode* like = node.find("like"); like != nullptr) {
      const Reader own(given, "device", key_names("device_like"));
      const YamlNode base = read_yaml(of_name(own, "like") / kDeviceFile);
      std::erase_if(node.entries, [](const YamlNode::Entry& entry) { return entry.key == "like"; });
      add_missing(node, base);
    }
    machine.spec.device = device_of(node, "device");
    machine.device_directory = devices / machine.spec.device.name;
    return;
  }
  const std::filesystem::path own = file.parent_path() / reader.text("device");
  const bool is_file = std::filesystem::is_regular_file(own);
  if (is_file || std::filesystem::exists(own / kDeviceFile)) {
    machine.device_directory = is_file ? own.parent_path() : own;
    machine.spec.device = read_device(is_file ? own : own / kDeviceFile);
    return;
  }
  machine.device_directory = of_name(reader, "device");
  machine.spec.device = read_device(machine.device_directory / kDeviceFile);
}

}  // namespace

Device read_device(const std::filesystem::path& file) { return device_of(read_yaml(file), ""); }

Device read_measured_device(const std::filesystem::path& device_directory) {
  Device device = read_device(device_directory / "device.yaml");
  const std::filesystem::path file = device_directory / kMeasuredOn;
  if (!std::filesystem::exists(file)) return device;
  const YamlNode root = read_yaml(file);
  const Reader reader(root, "", {"hbm_bandwidth", "dense_flops"});
  device.hbm_bandwidth = reader.bytes_per_second("hbm_bandwidth");
  device.dense_flops = read_dense_flops(reader.at("dense_flops"), device.sources);
  return device;
}

std::optional<MeasuredLinks> read_measured_links(const std::filesystem::path& directory,
                                                 const std::filesystem::path& topologies) {
  if (const auto file = directory / kMeasuredOn; std::filesystem::exists(file)) {
    const YamlNode root = read_yaml(file);
    const Reader reader(root, "", {"nvlink_rate", "nvlink_latency"});
    return MeasuredLinks{.nvlink_rate = reader.bytes_per_second("nvlink_rate"),
                         .nvlink_latency = reader.seconds("nvlink_latency", true)};
  }
  const std::filesystem::path machine = directory.string() + ".yaml";
  if (!std::filesystem::exists(machine)) return std::nullopt;
  const MachineSpec spec = read_machine(machine, topologies).spec;
  return MeasuredLinks{.nvlink_rate = spec.nvlink_rate, .nvlink_latency = spec.nvlink_latency};
}

MachineFile read_machine(const std::filesystem::path& file,
                         const std::filesystem::path& topologies) {
  const YamlNode root = read_yaml(file);
  check_keys(root, kMachineSection);
  Reader reader(root, "", key_names(kMachineSection));
  MachineFile machine;
  MachineSpec& spec = machine.spec;
  reader.collect_sources(&spec.sources);
  spec.name = reader.has("name") ? reader.text("name") : file.stem().string();
  std::vector<std::string_view> kinds;
  for (const TopologyKind& kind : topology_kinds()) {
    kinds.push_back(kind.name);
  }
  spec.kind = kinds[reader.choice("kind", kinds)];

  read_device_of(reader, file, topologies, machine);

  const auto whole = [&](std::string_view key, int& value) {
    if (reader.has(key)) {
      value = static_cast<int>(reader.integer(key, 1, kMaxGpus));
    }
  };
  const auto rate = [&](std::string_view key, BytesPerSecond& value) {
    if (reader.has(key)) {
      value = reader.bytes_per_second(key);
    }
  };
  const auto latency = [&](std::string_view key, Seconds& value) {
    if (reader.has(key)) {
      value = reader.seconds(key, /*zero_allowed=*/true);
    }
  };
  whole("num_gpus", spec.num_gpus);
  whole("gpus_per_node", spec.gpus_per_node);
  whole("nodes_per_leaf", spec.nodes_per_leaf);
  if (reader.has("gpus_per_node") && spec.num_gpus % spec.gpus_per_node != 0) {
    reader.fail("gpus_per_node", "found " + std::to_string(spec.gpus_per_node) + " of " +
                                     std::to_string(spec.num_gpus) +
                                     " GPUs; expected a divisor of num_gpus");
  }
  const bool has_slots = spec.kind == kPcieNode;
  for (const std::string_view key :
       {"nvlink_rate", "nvlink_latency", "pcie_rate", "pcie_latency"}) {
    if (!reader.has(key) || key.starts_with("pcie") == has_slots) continue;
    reader.fail(key, "is of other kinds than " + spec.kind + "; expected " +
                         (has_slots ? "pcie" : "nvlink") + std::string(key.substr(key.find('_'))));
  }
  rate(has_slots ? "pcie_rate" : "nvlink_rate", spec.nvlink_rate);
  rate("nic_rate", spec.nic_rate);
  latency(has_slots ? "pcie_latency" : "nvlink_latency", spec.nvlink_latency);
  latency("nic_latency", spec.nic_latency);
  latency("switch_latency", spec.switch_latency);
  if (reader.has("spine_oversubscription")) {
    spec.spine_oversubscription = reader.number("spine_oversubscription", 1);
  }
  if (reader.has("cost")) spec.costs = read_costs(reader.at("cost"), {});
  // A directory beside the file, or one of topologies/.
  std::filesystem::path collectives = topologies / spec.name;
  if (reader.has("collectives")) {
    const std::filesystem::path beside = file.parent_path() / reader.text("collectives");
    collectives =
        std::filesystem::is_directory(beside) ? beside : topologies / reader.text("collectives");
  }
  if (std::filesystem::is_directory(collectives)) {
    machine.collectives_directory = collectives;
  } else if (reader.has("collectives")) {
    reader.fail("collectives", "no such directory: " + collectives.string());
  }
  return machine;
}

std::vector<std::string> machine_names(const std::filesystem::path& topologies) {
  return sorted_names(topologies, false);
}

std::vector<std::string> provider_names(const std::filesystem::path& device_directory) {
  return sorted_names(device_directory, true);
}

}  // namespace orrery

#include "sim/scenario/machine_setting.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "sim/scenario/costs.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/machine_file.h"
#include "sim/scenario/named_files.h"

namespace orrery {

namespace {

constexpr std::string_view kNoProvider = "none";

std::string_view place_of(std::string_view side) {
  return side == kFfnSide ? "placement" : "disaggregation";
}

const YamlNode* find_side(const YamlNode& root, std::string_view side) {
  const YamlNode* apart = root.find(place_of(side));
  return apart == nullptr ? nullptr : apart->find(side);
}

// Of the mapping that says `key` of a side: the side's own, else the scenario's.
Reader reader_of(const Reader& root, std::string_view side, std::string_view key) {
  if (!side_has(root.node(), side, key)) return root;
  return {*find_side(root.node(), side), std::string(place_of(side)) + "." + std::string(side),
          key_names(side == kFfnSide ? "ffn_side" : "side")};
}

// Name of the profile that `engine` asks for, without a path; the engine is not read yet.
std::string profile_name(const YamlNode& root) {
  const YamlNode* engine = root.find("engine");
  const YamlNode* profile = engine == nullptr ? nullptr : engine->find("profile");
  return profile == nullptr ? kDefaultProfile
                            : std::filesystem::path(profile->scalar).stem().string();
}

// machine: NAME, or {name: NAME, num_gpus: N} where the topology can have any size. The directory
// of its collective tables, empty where it has none.
std::filesystem::path read_machine_part(const Reader& place, const std::filesystem::path& directory,
                                        const std::filesystem::path& project,
                                        MachineSetting& setting) {
  const std::filesystem::path topologies = project / "topologies";
  const YamlNode& node = place.at("machine");
  const std::string path = place.path_of("machine");
  const bool is_mapping = node.kind == YamlNode::Kind::kMap;
  const Reader reader = is_mapping ? Reader(node, path, key_names("scenario_machine")) : place;
  const std::string_view key = is_mapping ? "name" : "machine";
  setting.machine = reader.text(key);
  std::filesystem::path file;
  if (is_path(setting.machine)) {
    file = required_file(reader, key, setting.machine, directory, project);
  } else {
    file = topologies / (setting.machine + ".yaml");
    if (!std::filesystem::exists(file)) {
      reader.fail(key, unknown_name("machine", setting.machine, machine_names(topologies)));
    }
  }
  MachineFile machine = read_machine(file, topologies);
  setting.machine_spec = std::move(machine.spec);
  if (is_mapping && reader.has("num_gpus")) {
    setting.machine_spec.num_gpus = static_cast<int>(reader.integer("num_gpus", 1, kMaxGpus));
  }
  try {
    (void)make_machine(setting.machine_spec);
  } catch (const std::invalid_argument& error) {
    fail_at(node.where, path + ": " + error.what());
  }
  return std::move(machine.collectives_directory);
}

// A path to tables is one of tables of one device.
void check_provider_path(const Reader& place, const YamlNode& root, const MachineSetting& setting) {
  if (!is_path(setting.provider) || !place.path().empty()) return;
  if (side_has(root, kFfnSide)) {
    place.fail("provider",
               "found a path, to tables of one device, beside FFNs on a machine of their own; "
               "expected a name, or none");
  }
  if (has_two_machines(root)) {
    place.fail("provider",
               "found a path, to tables of one device, beside prefill and decode on "
               "machines of their own; expected provider in disaggregation.prefill and "
               "disaggregation.decode");
  }
}

// provider: NAME of tables on any device of the vendor, a path to tables of this device, or none;
// without it default_provider.
void read_provider(const Reader& place, const YamlNode& root,
                   const std::filesystem::path& directory, const std::filesystem::path& project,
                   MachineSetting& setting) {
  const std::filesystem::path topologies = project / "topologies";
  const Device& device = setting.machine_spec.device;
  setting.is_provider_chosen = !place.has("provider");
  if (setting.is_provider_chosen) {
    setting.provider = default_provider(topologies, device, profile_name(root));
    if (setting.provider.empty()) setting.provider = kNoProvider;
  } else {
    setting.provider = place.text("provider");
    check_provider_path(place, root, setting);
  }
  if (setting.provider == kNoProvider) {
    setting.collective_tables.clear();
    return;
  }
  std::vector<KernelDirectory>& tables = setting.kernel_tables;
  bool is_known = false;
  if (is_path(setting.provider)) {
    const auto own = resolve_path(setting.provider, directory, project);
    const std::string name = own.filename().string();
    is_known = std::filesystem::is_directory(own);
    tables = kernel_directories(topologies, name, device);
    tables.insert(tables.begin(), {.path = own, .provider = name, .device = device});
  } else {
    tables = kernel_directories(topologies, setting.provider, device);
    is_known =
        std::ranges::find(tables, setting.provider, &KernelDirectory::provider) != tables.end();
  }
  if (!is_known) {
    std::vector<std::string> known = usable_providers(topologies, device);
    known.emplace_back(kNoProvider);
    place.fail("provider", unknown_name("provider of " + device.name, setting.provider, known));
  }
}

}  // namespace

MachineSpec machine_part(MachineSpec spec, std::int64_t num_gpus) {
  const std::int64_t domain =
      std::max(1, std::lcm(topology_kind(spec.kind).nvlink_domain_size(spec),
                           std::min(spec.gpus_per_node, spec.num_gpus)));
  const std::int64_t whole = (num_gpus + domain - 1) / domain * domain;
  spec.num_gpus = static_cast<int>(std::min<std::int64_t>(spec.num_gpus, whole));
  return spec;
}

bool side_has(const YamlNode& root, std::string_view side, std::string_view key) {
  const YamlNode* found = find_side(root, side);
  return found != nullptr && found->find(key) != nullptr;
}

bool has_two_machines(const YamlNode& root) {
  return side_has(root, kPrefillSide) || side_has(root, kDecodeSide);
}

bool has_own_setting(const YamlNode& root) {
  return std::ranges::any_of(std::array{kPrefillSide, kDecodeSide}, [&](std::string_view side) {
    return side_has(root, side) || side_has(root, side, "provider") || side_has(root, side, "cost");
  });
}

MachineSetting read_machine_setting(const Reader& root, std::string_view side,
                                    const std::filesystem::path& directory,
                                    const std::filesystem::path& project) {
  MachineSetting setting;
  const std::filesystem::path collectives =
      read_machine_part(reader_of(root, side, "machine"), directory, project, setting);
  setting.collective_tables =
      collective_directories(project / "topologies", setting.machine_spec, collectives);
  read_provider(reader_of(root, side, "provider"), root.node(), directory, project, setting);
  OwnerCosts& costs = setting.machine_spec.costs;
  if (root.has("cost")) costs = read_costs(root.at("cost"), costs);
  if (side_has(root.node(), side, "cost")) {
    const Reader own = reader_of(root, side, "cost");
    costs = read_costs(own.at("cost"), costs, own.path_of("cost"));
  }
  return setting;
}

}  // namespace orrery

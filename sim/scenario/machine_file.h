#pragma once

// Machines and devices from topologies/. Values are plain or {value, source}.

#include <filesystem>
#include <string>
#include <vector>

#include "sim/machine/machine.h"

namespace orrery {

struct MachineFile {
  MachineSpec spec;
  std::filesystem::path device_directory;       // topologies/devices/<gpu>, holds the providers
  std::filesystem::path collectives_directory;  // empty when the machine has none
};

// `file` is topologies/<name>.yaml or any other; devices are looked up under `topologies`/devices.
// Throw ScenarioError.
MachineFile read_machine(const std::filesystem::path& file,
                         const std::filesystem::path& topologies);
Device read_device(const std::filesystem::path& file);

// Names under topologies/, ascending.
std::vector<std::string> machine_names(const std::filesystem::path& topologies);
std::vector<std::string> provider_names(const std::filesystem::path& device_directory);

}  // namespace orrery

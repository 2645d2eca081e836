#pragma once

// Machines and devices from topologies/. Values are plain or {value, source}.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/machine/machine.h"

namespace orrery {

struct MachineFile {
  MachineSpec spec;
  std::filesystem::path device_directory;       // holds device.yaml, and here the providers
  std::filesystem::path collectives_directory;  // empty when the machine has none
};

// `file` is topologies/<name>.yaml or any other. Its device is the name of one of
// `topologies`/devices, a path from `file`'s directory (of a directory with device.yaml, or of such
// a file), or a mapping with the keys of device.yaml; `like: NAME` there takes what it lacks from a
// device of that name. Throw ScenarioError.
MachineFile read_machine(const std::filesystem::path& file,
                         const std::filesystem::path& topologies);
Device read_device(const std::filesystem::path& file);

// The device of a directory as it was when the tables there were measured: its device.yaml, and
// over it the rates of measured_on.yaml where there is one.
Device read_measured_device(const std::filesystem::path& device_directory);

// Links of the node that a directory of collective tables was measured on.
struct MeasuredLinks {
  BytesPerSecond nvlink_rate;
  Seconds nvlink_latency;
};
// From its measured_on.yaml; without one, from <directory>.yaml beside it, if there is that.
std::optional<MeasuredLinks> read_measured_links(const std::filesystem::path& directory,
                                                 const std::filesystem::path& topologies);

// Names under topologies/, ascending.
std::vector<std::string> machine_names(const std::filesystem::path& topologies);
std::vector<std::string> provider_names(const std::filesystem::path& device_directory);

}  // namespace orrery

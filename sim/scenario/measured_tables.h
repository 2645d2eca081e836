#pragma once

// Which directories of measured tables a run draws on, nearest first: the provider on the device of
// the machine, then what may stand in for it (Origin in sim/cost/cost.h).

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/machine/machine.h"
#include "sim/units/units.h"

namespace orrery {

struct KernelDirectory {
  std::filesystem::path path;
  std::string provider;
  Device device;  // on which it was measured
  Origin origin = Origin::kOwn;
};

struct CollectiveDirectory {
  std::filesystem::path path;
  std::string machine;
  BytesPerSecond nvlink_rate;  // on which it was measured
  bool is_own = true;          // measured on the machine asked for, as it is asked for
  // In what a machine of this name differs from the one that was measured, in words.
  std::vector<std::string> differences;
};

// In what `asked` differs from the device of its name that tables were measured on, in words.
std::vector<std::string> differences(const Device& measured, const Device& asked);

// Tables below <topologies>/devices that can answer for `provider` on `device`, in the order of
// their origin, then of the devices' distance, then by name. Throws ScenarioError on a malformed
// device.yaml.
std::vector<KernelDirectory> kernel_directories(const std::filesystem::path& topologies,
                                                std::string_view provider, const Device& device);

// Names under which a provider may be asked for on `device`: those measured on a device of the same
// vendor, ascending.
std::vector<std::string> usable_providers(const std::filesystem::path& topologies,
                                          const Device& device);

// What a scenario's engine profile runs on where it names no provider: of the tables of that engine
// ("vllm" of vllm_eager) those of the device that is nearest to `device`, of several versions the
// newest. Empty where there are none.
std::string default_provider(const std::filesystem::path& topologies, const Device& device,
                             std::string_view profile);

// Collective tables for `spec`: `own` unless it is empty, then those of machines whose devices are
// of the same vendor, by the ratio of the NVLink rates, then the devices' distance, then by name.
// Throws ScenarioError on a malformed machine file.
std::vector<CollectiveDirectory> collective_directories(const std::filesystem::path& topologies,
                                                        const MachineSpec& spec,
                                                        const std::filesystem::path& own);

// The table of links `name` ("nvlink.csv") of the machine's own directory; empty where the first of
// `tables` is another machine's, or has none.
std::filesystem::path links_table(std::span<const CollectiveDirectory> tables,
                                  std::string_view name);

}  // namespace orrery

#pragma once

// What of a scenario follows from the machine that it runs on, and from whose kernels run there. A
// side of a disaggregated service may have a machine, a provider or a price of its own:
//
//   disaggregation:
//     prefill: {machine: hgx-h100, tp: 8}
//     decode: {machine: hgx-h200, tp: 8, cost: {usd_per_gpu_hour: 3}}
//     transfer: {rate: 50 GB/s}

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/machine/machine.h"
#include "sim/scenario/engine_profile.h"
#include "sim/scenario/measured_tables.h"
#include "sim/scenario/reader.h"
#include "sim/units/units.h"

namespace orrery {

struct MachineSetting {
  std::string machine;              // name or path
  std::string provider;             // likewise, or "none"
  bool is_provider_chosen = false;  // by the device, not named
  MachineSpec machine_spec;
  EngineProfile engine_profile;
  // Measured tables in the order in which they are asked. No kernel tables with provider "none":
  // roofline only.
  std::vector<KernelDirectory> kernel_tables;
  std::vector<CollectiveDirectory> collective_tables;
};

// FFNs of a placement that lie on a machine of their own:
//
//   placement: {dp: 16, ffn_instances: 1, ffn_tp: 8, ffn: {machine: h800-cluster}}
struct FfnSide {
  MachineSetting setting;
  // What a GPU sends to the other machine; none: what the networks of both say.
  std::optional<BytesPerSecond> rate;
  std::optional<Seconds> latency;
};

// The part of a machine that so many GPUs lie on, in whole nodes and NVLink domains.
MachineSpec machine_part(MachineSpec spec, std::int64_t num_gpus);

// Sides of a disaggregated service, as keys of `disaggregation`, and the FFNs of `placement`.
inline constexpr std::string_view kPrefillSide = "prefill";
inline constexpr std::string_view kDecodeSide = "decode";
inline constexpr std::string_view kFfnSide = "ffn";

// Whether a side of the scenario `root` names a machine of its own. `key`: or something else.
bool side_has(const YamlNode& root, std::string_view side, std::string_view key = "machine");
// Whether both sides have their GPUs from different machines: one that a side names is its own,
// another than that of the other side even where both have one name.
bool has_two_machines(const YamlNode& root);
// Whether anything of a MachineSetting is said of a side.
bool has_own_setting(const YamlNode& root);

// That of a side: what the side does not say, the scenario says of both. Of a scenario that is not
// disaggregated there is one, whatever `side`. Its engine profile is not read here. `directory`:
// where paths begin. Throws ScenarioError for names that are not known, with the nearest.
MachineSetting read_machine_setting(const Reader& root, std::string_view side,
                                    const std::filesystem::path& directory,
                                    const std::filesystem::path& project);

}  // namespace orrery

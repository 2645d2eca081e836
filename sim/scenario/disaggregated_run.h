#pragma once

// A disaggregated scenario as two sides and the links between them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/machine/machine.h"
#include "sim/scenario/scenario.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/transfer.h"
#include "sim/units/units.h"

namespace orrery {

// `scenario`, which is disaggregated, with the machine, the replicas, the mesh and the engine of
// one side.
Scenario prefill_side(const Scenario& scenario);
Scenario decode_side(const Scenario& scenario);
// The side named `side` as a scenario by itself, whose steps can be priced and explained. Throws
// std::invalid_argument for another name, or a scenario that is not disaggregated.
Scenario side_alone(const Scenario& scenario, std::string_view side);

// Measured transfers of KV blocks (docs/data.md): of each size the fastest way, of blocks that lie
// scattered. Of the sizes of blocks measured the one nearest to `piece`, the bytes of one block of
// one layer's keys or values. Throws ScenarioError for a malformed file.
std::vector<TransferPoint> read_transfer_points(const std::filesystem::path& file, Bytes piece);

// What transfers of an executed service took beside its steps (docs/data.md): from when blocks
// might move until they did, and the time against that of `read_transfer_points`. Throws
// ScenarioError for a malformed file.
struct ServedTransfers {
  Seconds start;
  double time_ratio = 1;
};
ServedTransfers read_served_transfers(const std::filesystem::path& file);

// Links from every data-parallel rank of the prefill replicas to every one of the decode replicas,
// [prefill, decode], and where their times come from. Replicas lie next to each other, prefill
// first. Between GPUs of one NVLink domain a transfer takes the time measured on the machine, where
// there is one, else the route's latency and bytes over its narrowest link;
// `disaggregation.transfer` replaces either. Sides that split the model unlike take the ports of
// one of them less than whole. Between two machines a transfer takes what `disaggregation.transfer`
// says, else the lower rate and the longer latency of their networks (machine_link.h).
struct TransferLinks {
  std::vector<TransferLink> links;
  std::string source;
};
// `machine`: that of both sides, not asked where they have two. `kv_block`: bytes of one block on
// one rank of the decode side.
TransferLinks transfer_links(const Scenario& scenario, const Machine& machine, Bytes kv_block);

// One KV block on its way: bytes on the GPU that sends or receives most, and of all GPUs.
// `kv_block`: as above.
struct MovedBlock {
  Bytes of_gpu;
  Bytes of_all;
};
MovedBlock moved_block(const Scenario& scenario, Bytes kv_block);

// DisaggregatedConfig::num_moved_layers: those of a prefill GPU where they move one by one.
std::int64_t num_moved_layers(const Scenario& scenario);

}  // namespace orrery

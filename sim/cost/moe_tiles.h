#pragma once

// What a launch of fused_moe takes, tile by tile, for shapes that no rows are of. The kernel's own
// tasks (kernels/experts/fused_moe/work_sm90.cuh) run on as many SMs as it has blocks:
//
//   routing      scores, choices, counts of all blocks and ranks, rows sent where their experts are
//   a task       taken by the SM that is free first, in the kernel's order; one of the second layer
//                waits for all columns of the first of its rows
//   fetching     all SMs share the memory: weights come from HBM once for each expert and columns,
//                and from L2 for other tiles of the same columns, as x does
//   multiplying  while that is fetched, then results are written
//   results      go over the links to the tokens' ranks, and are added up, in the order of tasks
//
// Ranks are alike but for their delays and the rows of their experts: these are what tokens choose
// on average, spread as chance spreads them, and of a capacity each takes the mean of what chance
// leaves it. Left out: clocks under the power limit beyond what the fitted times hold of it.

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "kernels/experts/fused_moe/shape.h"
#include "sim/units/units.h"

namespace orrery {

// Those of bf16 were fitted to the 132 rows of fused_moe that were measured on H200s of one host up
// to 2026-11-29 (four shapes on one, two and four GPUs), by docs/tools/moe_tiles.py; layers of six
// models, measured since, are what they are judged by. Of fp8 what differs was fitted to all 150
// rows. docs/kernels/fused_moe.md has the errors, those of shapes left out of the fits too.
struct MoeTileTimes {
  // Routing.
  Seconds launch;        // whatever the shape
  Seconds per_expert;    // of all
  Seconds per_token;     // of a block
  Seconds per_choice;    // of a block's tokens
  Seconds per_round;     // of a block's warps, for each choice of a token
  Seconds per_rank;      // other than the own
  BytesPerSecond send;   // rows read and written, on one GPU
  BytesPerSecond links;  // rows of x to other ranks
  // Tasks.
  Seconds begin;
  Seconds step;          // of 128 bytes of columns that are summed over, however few rows
  Seconds step_row;      // and for each row of the tile
  Seconds write_row;     // of the tile; of a gated layer `gated` times as long
  Seconds quantize_row;  // of the tile, between the layers of fp8
  double gated = 1;
  Seconds hop;              // from the last tile of the first layer to who waits for it
  BytesPerSecond hbm;       // of all SMs
  BytesPerSecond sm;        // that fetches alone
  double x_bytes = 1;       // of what a byte of weights from HBM takes, a byte of x
  double l2_bytes = 1;      // and one of weights that another tile has fetched
  BytesPerSecond returned;  // results to other ranks
  BytesPerSecond sums;      // results added up
  Seconds end;
  Seconds end_of_ranks;  // of several, besides
};
MoeTileTimes h200_moe_tile_times(bool is_fp8 = false);
// On a GPU of that peak (of the format) and memory; everything else as on an H200.
MoeTileTimes moe_tile_times(bool is_fp8, FlopsPerSecond peak, BytesPerSecond hbm_bandwidth);

// In which order SMs take tasks.
enum class MoeTileOrder : std::uint8_t {
  kBehind,        // the second layer one and a half rounds of tasks behind the first: the kernel's
  kByLayer,       // all of the first layer, then the second
  kLongestFirst,  // as kBehind, experts with most rows first
  kReadyFirst     // as kBehind, but an SM takes the first task that is ready, where there is one
};
// "behind", "by_layer", "longest_first", "ready_first"
std::string_view to_text(MoeTileOrder order);
MoeTileOrder parse_moe_tile_order(std::string_view text);

// By rank, in time; ranks that are not named are not late.
struct MoeDelays {
  // It launches so much later. No rank places a row before it has heard the counts of all
  // (route_sm90.cuh, hear_starts), so all begin their tasks later by as much as the last.
  std::map<std::int64_t, Seconds> begin;
  // Its SMs begin no task for so long, from when half of all are taken; of a bulk-synchronous layer
  // it comes so much later to the exchange of results. All wait for its results.
  std::map<std::int64_t, Seconds> stall;
};

// Ranks on several hosts, as many on each, in order. Counts reach other hosts later by the latency.
// Each row of x for another host is a message to the rank's own NIC, and so are the rows of a
// tile of results for a rank there; an SM whose messages find no place (nic_queue.h) takes its next
// task when the last has one. Left out: what posting a message and an RDMA write take themselves.
struct MoeNetwork {
  std::int64_t hosts = 1;
  BytesPerSecond rate;     // of each rank's NIC, one way
  Seconds latency;         // one way
  std::int64_t queue = 0;  // messages of a rank that are not acknowledged, at most; 0: any number
};

struct MoeTileOptions {
  MoeTileOrder order = MoeTileOrder::kBehind;
  int num_sms = 132;
  MoeDelays delays;
  // The same tiles between two exchanges that each wait for all ranks: results are sent when the
  // last is written everywhere, and added up when all are there.
  bool is_bulk_synchronous = false;
  MoeNetwork network;
  // That a token chooses the routed expert of each place, rank after rank, topk in all. Empty: all
  // alike. Else the layer takes as long as its slowest rank, all of them on one host.
  std::vector<double> choices;
  bool keeps_tasks = false;
};

// A task of one rank, as the kernel's own trace has them (kernels/experts/fused_moe/trace.h).
struct MoeTaskSpan {
  std::int32_t sm = 0;
  std::int32_t layer = 1;  // or 2
  std::int32_t expert = 0;
  std::int32_t tile = 0;    // of rows, of all experts
  std::int32_t column = 0;  // first
  Seconds taken;
  Seconds ready;  // the SM knows that what it needs is there
  Seconds end;
  Seconds counted;  // of the first layer: its part of what the second needs is there
};

// From when a rank could begin that is not late, to when the last rank has ended.
struct MoeLayerTime {
  Seconds duration;
  Seconds routed;   // the first tasks begin
  Seconds tiles;    // the last results are written
  double busy = 0;  // part of the SMs' time between these two in which they multiply or write
  std::int64_t most_outstanding = 0;  // messages of a rank to other hosts at once
  std::vector<MoeTaskSpan> tasks;     // in the order in which they end, where they are kept
};

// Deterministic. Throws std::invalid_argument for a shape without tokens or experts, experts that
// do not divide over its ranks, ranks that do not divide over hosts, fewer than one SM, a rate that
// is not positive, a delay that is negative or of a rank that is not there, and choices that are
// not one in [0, 1] for each routed expert, or of ranks on several hosts.
MoeLayerTime simulate_moe_tiles(const FusedMoeShape& shape, const MoeTileTimes& times,
                                const MoeTileOptions& options = {});

// What rows of x and results of a rank take on the links of one host to other ranks, with nothing
// beside them.
struct MoeExchangeTimes {
  Seconds dispatch;
  Seconds combine;
};
MoeExchangeTimes moe_exchange_times(const FusedMoeShape& shape, const MoeTileTimes& times);

}  // namespace orrery

#pragma once

// A collective as aggregated flows: one flow per participant towards a partner, over the links that
// bound the collective.
//
//   one NVLink domain:   rank i -> rank i+1, the last one to the first
//   several domains:     j-th participant of a domain -> j-th of the next one: the same rail where
//                        the mesh is regular, so every NIC of the participants is in use
//   send_recv:           first -> second only; broadcast: no flow back to the first
//   two sides:           each rank of the larger side and one of the smaller, dealt out in turn
//
// The real bytes on a port set how long the links are in use; whatever else the collective takes
// (steps, protocol, the hops of the other fabric) occupies no link.

#include <span>
#include <utility>
#include <vector>

#include "sim/machine/machine.h"
#include "sim/plan/plan.h"
#include "sim/plan/sides.h"
#include "sim/units/units.h"

namespace orrery::des {

struct Flow {
  int from = 0;
  int to = 0;
  std::vector<int> links;  // indices into Machine::links
  BytesPerSecond rate;     // max-min share while only this collective runs
};

struct FlowSet {
  std::vector<Flow> flows;
  std::vector<std::pair<int, int>> num_flows_on;  // (link, flows), ascending links
  int num_ranks = 0;
  int num_domains = 1;
  int num_local = 1;      // most participants in one domain
  double side_share = 0;  // between sides: of the bytes of a rank of the smaller; 0: of no sides
};

// Flows of the collective of `kind` among `ranks` (ascending). Only those that start at a rank in
// `simulated` (ascending) are kept; for send_recv the one that starts or ends there.
FlowSet flows_of(const Machine& machine, CollectiveKind kind, std::span<const int> ranks,
                 std::span<const int> simulated);
// Of an all_to_all between two sides, those that start or end at a rank in `simulated`.
FlowSet flows_between(const Machine& machine, const Sides& sides, std::span<const int> simulated);

// Bytes that one flow carries: what the port it uses must send in a bandwidth-optimal algorithm
// (hierarchical over domains, NICs of a domain used alike).
Bytes bytes_per_flow(const FlowSet& flows, const CommOp& op);

// How long the flows take when nothing else runs.
Seconds time_alone(const FlowSet& flows, Bytes bytes_each);

}  // namespace orrery::des

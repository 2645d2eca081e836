#pragma once

// Interpreter 1: Plan -> Timeline in simulated time, at four levels of detail behind one interface.
//
//   kClosedForm      arithmetic over the chain of ops of each rank class; no concurrency
//   kHeap            every task an event on our own heap; streams and dependencies, no sharing
//   kRepresentative  SimGrid, one rank per class of ranks with equal op lists; concurrent kernels
//                    share SMs, flows share links
//   kAllRanks        SimGrid, every rank; each collective is one aggregated flow per rank
//
// A plan that is one chain without contention takes the same time at all four levels (1e-9).
//
// When a task starts, at every level: its predecessor on the stream has ended (in graph mode plus
// HostCosts::graph_node between two GPU ops); the latest earlier writers of what it reads and its
// `after` ops have ended on the same rank, those on other streams HostCosts::graph_hop or eager_hop
// before; the host has issued it; and all participants of a collective are ready (they start and
// end together). The host of a rank walks the rank's ops in order: in eager mode it takes
// HostCosts::eager_launch for each GPU op (but those that it does not launch,
// kernels/kernel_spec.h), eager_collective for collectives other than all_reduces; a HostOp
// occupies it once its dependencies have ended (kD2hSync: once its stream is empty too). Rank r
// runs on GPU r.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/des/chain.h"
#include "sim/machine/machine.h"
#include "sim/plan/plan.h"
#include "sim/timeline/timeline.h"

namespace orrery {

enum class StepLevel : std::uint8_t { kClosedForm, kHeap, kRepresentative, kAllRanks };
std::string_view to_text(StepLevel level);  // "closed_form" "heap" "representative" "all_ranks"
StepLevel parse_step_level(std::string_view text);  // throws std::invalid_argument

struct SimulateOptions {
  StepLevel level = StepLevel::kHeap;
  // Multiplies the duration of every task of a rank (stragglers); empty: all 1.
  std::vector<double> rank_slowdown;
  bool record_links = true;  // link_spans; not at kClosedForm
  // SMs that a running collective holds while kernels run beside it (SimGrid levels; a kernel wants
  // all SMs; none where the device's num_sms is unknown). Blocks of NCCL on two and four H200s; 20
  // of DeepSeek-V3 on an H800 (arXiv 2412.19437, section 3.2.2).
  int comm_sms = 24;
};

// A plan with the time of each op: what every level starts from. `times[i]` belongs to ops()[i].
// Refers to the plan, which must outlive it unchanged.
struct PricedPlan {
  const Plan* plan = nullptr;
  std::vector<Estimate> times;
  // Set when every rank runs one chain (one stream, host ops that wait for nothing or for the op
  // just before them): then the closed form is exact.
  bool is_chain = false;
  std::string why_not_chain;  // names the op, for the error message; empty for a chain
  std::vector<Chain> chains;  // one per rank class; empty when not a chain
  BasisSeconds basis;         // of the first rank: all its tasks, repeats counted
  Seconds arithmetic;         // likewise, Estimate::arithmetic
  Joules energy;              // of all ranks, repeats counted
};
// Each op once; equal ops are asked for once. Chains, basis and simulations go by Estimate::time,
// which is that at `clock`.
PricedPlan price(const Plan& plan, const CostModel& cost, Clock clock = Clock::kFull);
// A plan priced at the full clock with times that are `part` of the way from there to those at the
// power limit.
PricedPlan limited(const PricedPlan& full, double part);

// Makespan of a chain by arithmetic, repeats multiplied, not walked. Throws std::invalid_argument
// when the plan is not a chain.
Seconds closed_form(const PricedPlan& priced, const CostModel& cost);
// Of a chain that meets no other; its sections hold the sums of its steps.
Seconds closed_form(const Chain& chain, const CostModel& cost);

// Throws std::invalid_argument when the plan does not verify, has more ranks than the machine, or
// is not a chain at kClosedForm.
Timeline simulate(const Plan& plan, const Machine& machine, const CostModel& cost,
                  const SimulateOptions& options = {});
// The same for a plan that is verified and priced already.
Timeline simulate(const PricedPlan& priced, const Machine& machine, const CostModel& cost,
                  const SimulateOptions& options = {});

}  // namespace orrery

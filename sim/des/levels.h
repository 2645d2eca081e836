#pragma once

// What the four levels of `simulate` share inside this room: a step whose ops are priced, with the
// host costs and the machine it runs on. Tests use it to set times directly.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/des/gpu_shares.h"
#include "sim/des/rank_classes.h"
#include "sim/des/simulate.h"
#include "sim/machine/machine.h"

namespace orrery::des {

// An op as messages name it.
std::string quoted(const Op& op);

// The PricedPlan of given times: classes, chains and basis from structure alone. `times` has one
// entry per op. Throws std::invalid_argument when the sizes differ or a time is negative or not
// finite.
PricedPlan assemble(const Plan& plan, std::vector<Estimate> times);

// Chains of the rank classes; empty with the reason in `why_not` when some class is no chain.
std::vector<Chain> make_chains(const Plan& plan, std::span<const Estimate> times,
                               std::span<const double> slowdown, std::string& why_not);

struct Step {
  const PricedPlan* priced = nullptr;
  const Machine* machine = nullptr;
  LaunchMode launch_mode = LaunchMode::kGraph;
  HostCosts host;
  std::vector<GpuDemand> demands;  // by op; empty: those of GpuDemand{}
};

// Throws as orrery::simulate does.
Timeline simulate(const Step& step, const SimulateOptions& options);

Seconds closed_form(const PricedPlan& priced, LaunchMode launch_mode, const HostCosts& host);
Seconds closed_form(const Chain& chain, LaunchMode launch_mode, const HostCosts& host);
Timeline closed_form_timeline(const Step& step, const SimulateOptions& options);

// When activities enter SimGrid.
enum class SharingMode {
  kNone,           // never: the heap level
  kWhenContended,  // once they overlap on an SM or a link with another
  kAlways          // from their start; equal to kWhenContended, kept for the test that says so
};

// Event-driven run of `ranks`.
Timeline run_events(const Step& step, const SimulateOptions& options, const RankSet& ranks,
                    SharingMode sharing);

}  // namespace orrery::des

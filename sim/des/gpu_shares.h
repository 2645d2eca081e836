#pragma once

// How the kernels and collectives that are on one GPU at the same time share its SMs and its memory
// (docs/sharing.md).

#include <span>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/machine/machine.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery::des {

// What an activity takes of its GPU while it runs as fast as alone, as shares of the whole.
struct GpuDemand {
  double sms = 1;   // SMs that its blocks fill
  double math = 1;  // of the rate at which the SMs compute
  double hbm = 0;   // of the rate at which the memory streams
  // Pieces of work that each block does, the first of which waits for it (KernelSpec::rounds); 0:
  // all work goes wherever SMs are.
  int rounds = 0;
  double wanted = 1;  // of `sms`: less when some of its blocks have ended
  // Whose blocks do not keep their SMs for long: of a kernel over rows they are small.
  bool yields = false;
  bool is_collective = false;
};

// What is measured of the device, or what was measured of an H200 where nothing is.
SharingRates sharing_rates(const Device& device);

// Of a kernel that takes `price.time` alone: it fills all SMs, but for those that work on few rows
// and GEMMs too small to draw the memory's rate. Bound by the SMs when its work is unknown.
GpuDemand kernel_demand(const Device& device, const KernelOp& op, const Estimate& price);
// The same by op of a plan with these times; GpuDemand{} for ops that are no kernels.
std::vector<GpuDemand> kernel_demands(const Plan& plan, std::span<const Estimate> times,
                                      const Machine& machine);
// Of a collective on the share `sms` of the SMs, which sends `bytes` and receives as many in
// `time`, each read from or written to this GPU's memory.
GpuDemand collective_demand(const SharingRates& rates, double sms, Bytes bytes, Seconds time);

struct GpuShare {
  double speed = 0;      // 1: as alone
  double sms = 0;        // granted, of the whole
  bool has_all = false;  // the SMs that it wants
};

// Shares of activities in the order in which they came.
//   SMs     first come, first served: a block keeps its SM until it ends, and the blocks of one
//           kernel go before those of the next. So a kernel that fills the GPU keeps later ones
//           waiting until it ends, and one that came when few SMs were free gets more as they are
//           freed; which of its work waits with the blocks that have none is in block_rounds.h.
//           Only of kernels that yield, which came before it, a collective has SMs at once.
//   speed   what is bound by the SMs slows as it has fewer of them; what is bound by memory, once
//           they no longer draw the memory rate (SharingRates::sms_for_hbm)
//   memory  in proportion to the SMs, since each has about as many bytes under way; none gets more
//           than it asks for, and what it leaves is shared by the others (max-min)
//   power   all that computes slows alike where together it computes more than the power limit
//           leaves (SharingRates::math_share) and than one of them does alone
std::vector<GpuShare> share_gpu(const SharingRates& rates, std::span<const GpuDemand> demands);

}  // namespace orrery::des

#pragma once

// The corrections of a price: what lies between the time that rows or the work model give and the
// time that an op takes in a step. One list, in the order in which they act; each has a name, a
// source and one thing that it does. What acts on a whole step is sim/serve/step_corrections.h.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "sim/cost/cost.h"
#include "sim/cost/interpolate.h"

namespace orrery {

// A kernel call and what answered it. `source`, `table` and `found` are null where no rows did.
struct PricedCall {
  const KernelOp& op;
  const KernelSpec& spec;
  const KernelOp& answered;  // the call whose rows these are: `op`, or another's of the same work
  const Device& device;
  const CostOptions& options;
  const KernelSource* source = nullptr;
  const KernelTable* table = nullptr;
  const Prediction* found = nullptr;
  // Of experts the time by the rows of the slowest of at least two other engines.
  std::optional<Seconds> slowest_of_others;
  const KernelOp* dropping = nullptr;  // `op` with the capacity of its experts; null: it has none
};

// A collective among `num_ranks`.
struct PricedCollective {
  const CommOp& op;
  std::size_t num_ranks = 0;
  const CostOptions& options;
};

// One of the three functions is set: what the correction changes.
struct Correction {
  std::string_view name;
  std::string_view source;
  void (*of_kernel)(const PricedCall& call, Estimate& estimate) = nullptr;
  void (*of_collective)(const PricedCollective& call, Estimate& estimate) = nullptr;
  // Time between ops, which sim/des adds where it lets them start.
  Seconds (*between_ops)(LaunchMode mode, const HostCosts& host) = nullptr;
};
std::span<const Correction> corrections();

// All of the list, in order; what each changed goes to `applied`, where there is one.
void correct(const PricedCall& call, Estimate& estimate,
             std::vector<AppliedCorrection>* applied = nullptr);
void correct(const PricedCollective& call, Estimate& estimate,
             std::vector<AppliedCorrection>* applied = nullptr);

// From the end of an op to the start of one on another stream that waits for it.
Seconds hop_time(LaunchMode mode, const HostCosts& host);
// What the host enqueues for an op: times of a kind are alike.
enum class Launched : std::uint8_t {
  kNothing,    // the host passes it by
  kRows,       // a kernel over rows; an all_reduce
  kProduct,    // a GEMM or attention
  kLatent,     // attention over latents, or products by head
  kCollective  // a collective of a library: any but all_reduce
};
inline constexpr std::size_t kLaunchedKinds = 5;
Launched launched_for(const Op& op);
// Host time to enqueue it; none in a graph. Of all kinds, in their order, in seconds.
Seconds launch_time(LaunchMode mode, const HostCosts& host, Launched launched);
std::array<double, kLaunchedKinds> launch_times(LaunchMode mode, const HostCosts& host);

// Of prices without a row of their own: shapes held out as a whole (docs/data.md).
inline constexpr double kNearestSpread = 0.25;

}  // namespace orrery

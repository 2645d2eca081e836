#pragma once

// Device time of one engine step as its whole plan says it: what sim/serve/step_templates.h
// assembles faster, and must equal.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "sim/cost/cost.h"
#include "sim/des/simulate.h"
#include "sim/machine/machine.h"
#include "sim/megakernel/timing.h"
#include "sim/model/model.h"
#include "sim/model/step_shape.h"
#include "sim/parallel/parallel.h"

namespace orrery {

struct DeviceTime {
  Seconds duration;  // at the full clock
  BasisSeconds basis;
  Seconds limited;     // at the power limit
  Seconds arithmetic;  // of the ops of the first rank, Estimate::arithmetic
  Joules energy;       // of the work of all ranks
};

// What a step is made of and on what it runs. Pointers outlive whoever holds this.
struct StepSetup {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  const Machine* machine = nullptr;
  const CostModel* cost = nullptr;
  StepLevel level = StepLevel::kClosedForm;
  // Decodes differ in context: their attention is priced by between_powers_of_two
  // (step_corrections.h).
  bool has_uneven_decodes = false;
  // Steps are one kernel; null: they are launched as `cost` says.
  const megakernel::MachineTimes* megakernel = nullptr;
};

// Decodes that the captured graph of a batch computes on all ranks: the fullest data-parallel rank
// fills up to a size of `captured` (ascending, per rank), and all ranks do as it does. None for a
// batch that is launched eagerly: with prefill, or larger than every graph.
std::optional<std::int64_t> graph_rows(const Batch& batch, int dp,
                                       std::span<const std::int64_t> captured);

// The shape of `batch` as it runs: dealt to the ranks of `mesh`, decodes padded to their graph.
StepShape executed_shape(const Batch& batch, const Mesh& mesh,
                         std::span<const std::int64_t> captured);

// Makespan of the plan of a shape: at kClosedForm by the closed form; where the plan is no chain on
// the heap, or at kRepresentative if kernels run beside each other.
DeviceTime step_time(const StepSetup& setup, const StepShape& shape);
DeviceTime step_time(const StepSetup& setup, const Batch& batch);

// By kernel, collective or host op: how much longer a step takes when the prices of all ops of that
// name are one standard deviation too low. Of a step in two halves it is what the makespan moves
// by, so that a price counts only where nothing hides it; of others the sum over the first rank.
std::map<std::string, Seconds> step_deviations(const StepSetup& setup, const StepShape& shape);

}  // namespace orrery

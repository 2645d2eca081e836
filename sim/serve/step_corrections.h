#pragma once

// The corrections of a step: what lies between the device time of its plan and the time that it
// takes in a service. One list, in the order in which they act; the ops of the plan have theirs
// (sim/cost/corrections.h) already.

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/serve/step_time.h"

namespace orrery {

struct SimulatedStepsConfig;

// What the host of a replica has from steps before.
struct KnownToHost {
  bool rows = true;       // it prepared these numbers of rows
  bool attention = true;  // it launched attention of this shape
};

// What a correction sees of a step, besides its time.
struct StepContext {
  const SimulatedStepsConfig& config;
  std::int64_t rank_sequences = 0;  // of the data-parallel rank with most chunks and decodes
  PowerBudget* budget = nullptr;    // of its GPUs; null: they have the full clock
  KnownToHost known;                // to its host
  double arithmetic_share = 0;      // of decodes
};

// A step with prefill, or decode steps in a row: the i-th of `num_steps` takes first + i * slope.
struct StepPrice {
  Seconds first;
  Seconds slope;
  std::int64_t num_steps = 1;
  BasisSeconds basis;     // of the first
  Seconds limited;        // of a step with prefill, `first` at the power limit
  Seconds arithmetic;     // and what the first rank computes of it
  double throttling = 0;  // part that the clock adds to the first decode step
  double throttling_slope = 0;
  Seconds host;  // beside launching
};

// One or more of the functions are set: what the correction changes.
struct StepCorrection {
  std::string_view name;
  std::string_view source;
  // Price of attention, as this many decodes call it.
  Estimate (*of_attention)(const CostModel& cost, KernelOp op) = nullptr;
  // Device time of a plan in which all decodes have one context.
  void (*of_device)(const SimulatedStepsConfig& config, std::int64_t num_decodes,
                    DeviceTime& time) = nullptr;
  void (*of_prefill)(const StepContext& step, StepPrice& price) = nullptr;
  void (*of_decodes)(const StepContext& step, StepPrice& price) = nullptr;
};
std::span<const StepCorrection> step_corrections();

// What one of them did to the time of a step (the first of decode steps) or to the host's part.
struct AppliedStepCorrection {
  std::string_view name;
  std::string_view source;
  Seconds before;
  Seconds after;
};

// All of the list that act on such a price, in order; what each changed goes to `applied`.
void correct_device(const SimulatedStepsConfig& config, std::int64_t num_decodes, DeviceTime& time,
                    std::vector<AppliedStepCorrection>* applied = nullptr);
void correct_prefill(const StepContext& step, StepPrice& price,
                     std::vector<AppliedStepCorrection>* applied = nullptr);
void correct_decodes(const StepContext& step, StepPrice& price,
                     std::vector<AppliedStepCorrection>* applied = nullptr);

// Price of attention over decodes of different contexts. Their number is no power of two in
// general, and rows of powers of two are the ones whose work divides evenly over the SMs: between
// those of the next smaller and the next larger. `op` has a dim "batch".
Estimate between_powers_of_two(const CostModel& cost, KernelOp op);

}  // namespace orrery

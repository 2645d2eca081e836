#pragma once

// How long an engine step takes. The scheduler does not know whether a step is simulated or run on
// GPUs: SimulatedSteps (sim/serve/simulated_steps.h) advances virtual time, ExecutedSteps
// (kernels/serve/executed_steps.h) runs the batch and reads the clock.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/model/model.h"
#include "sim/serve/expert_balance.h"
#include "sim/serve/kv_unit_events.h"
#include "sim/timeline/timeline.h"
#include "sim/units/energy.h"
#include "sim/units/units.h"

namespace orrery {

struct StepTime {
  Seconds duration;    // host time of the step included
  BasisSeconds basis;  // share of the device time by how it was obtained
  Joules energy;       // of the work of all ranks; 0: not known
  // Of each data-parallel rank that has a batch of its own, until it meets the others; else empty.
  std::vector<Seconds> ranks;
  Seconds draft;  // of the duration: passes that draft tokens
  // Of the duration, for blocks on their way between tiers, where the backend moves them itself.
  std::optional<Seconds> waited;
};

// Times of `num_steps` consecutive decode steps of one batch, each one token further: step i
// (0-based) takes first + i * slope. Within one fast-forward step time is linear in the context.
struct FastForward {
  std::int64_t num_steps = 0;
  Seconds first;
  Seconds slope;               // seconds per step; spelled as Seconds
  BasisSeconds basis;          // summed over the steps of the fast-forward
  Joules energy;               // likewise
  std::vector<Seconds> ranks;  // likewise, as in StepTime
  Seconds draft;               // likewise
  Seconds waited;              // likewise
};

// New tokens of one request in a step: `query` tokens after `context` that are in its KV cache. Of
// its prompt and the outputs made so far these are tokens [context, context + query).
struct StepSequence {
  std::int64_t request = 0;  // index into the workload's requests
  int rank = 0;              // the data-parallel rank that computes it
  std::int64_t query = 0;    // decodes: 1
  std::int64_t context = 0;
  bool produces_token = true;  // false: a chunk that does not end its prompt
  bool operator==(const StepSequence&) const = default;
};

class StepBackend {
 public:
  virtual ~StepBackend() = default;
  // Whether `begin` and `release` are to be called: a backend that computes tokens must know whose.
  // Such a backend takes one step at a time: its fast-forwards have one step.
  [[nodiscard]] virtual bool wants_sequences() const { return false; }
  // Who is told of units of the prefix cache and of tiers; null: nobody.
  [[nodiscard]] virtual KvUnitEvents* kv_units() { return nullptr; }
  // Before each `run` or `fast_forward`, from every backend: the step begins at `now`.
  virtual void starts(Seconds /*now*/) {}
  // After each `run` or `fast_forward`, before the next step: so many steps of it were taken, fewer
  // than a fast-forward had where something came up.
  virtual void ends(std::int64_t /*num_steps*/) {}
  // What experts did that are placed anew or whose load changes; null: they do not.
  [[nodiscard]] virtual const ExpertHistory* experts() const { return nullptr; }
  // Before each `run` or `fast_forward`: the step begins at `now` and computes the chunks of
  // `prefill` in the order of Batch::prefill, then `decodes` in order of admission; those of one
  // data-parallel rank after those of the other.
  virtual void begin(Seconds /*now*/, std::span<const StepSequence> /*prefill*/,
                     std::span<const StepSequence> /*decodes*/) {}
  // `request` gives its KV blocks back: it has ended, or was preempted and will be computed again
  // from context 0. Before the `begin` of the first step that may use them.
  virtual void release(std::int64_t /*request*/) {}
  // `ranks`: the batch of each data-parallel rank; or one batch of the whole instance, which is
  // dealt to its ranks evenly. Some, but not all, may be empty.
  virtual StepTime run(std::span<const Batch> ranks) = 0;
  // Of batches that only decode, at most `max_steps` (>= 1) steps; may return fewer (the next
  // bucket begins).
  virtual FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) = 0;
};

}  // namespace orrery

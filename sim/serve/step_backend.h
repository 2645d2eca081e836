#pragma once

// How long an engine step takes. The scheduler does not know whether a step is simulated or run on
// GPUs: SimulatedSteps (sim/serve/simulated_steps.h) advances virtual time, ExecutedSteps
// (kernels/execute) runs the batch and reads the clock.

#include <cstdint>

#include "sim/model/model.h"
#include "sim/timeline/timeline.h"
#include "sim/units/units.h"

namespace orrery {

struct StepTime {
  Seconds duration;    // host time of the step included
  BasisSeconds basis;  // share of the device time by how it was obtained
};

// Times of `num_steps` consecutive decode steps of one batch, each one token further: step i
// (0-based) takes first + i * slope. Within one leap step time is linear in the context.
struct LeapTime {
  std::int64_t num_steps = 0;
  Seconds first;
  Seconds slope;       // seconds per step; spelled as Seconds
  BasisSeconds basis;  // summed over the steps of the leap
};

class StepBackend {
 public:
  virtual ~StepBackend() = default;
  virtual StepTime run(const Batch& batch) = 0;
  // Decode-only batch, at most `max_steps` (>= 1) steps; may return fewer (the next bucket begins).
  virtual LeapTime leap(const Batch& batch, std::int64_t max_steps) = 0;
};

}  // namespace orrery

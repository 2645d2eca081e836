#pragma once

// What of a scenario is simulated and not executed on GPUs: refused here at once, with the key and
// what would do, where the executor (kernels/execute, kernels/serve) would find out late or fail.

#include <span>

#include "sim/scenario/scenario.h"

namespace orrery {

// Throws ScenarioError where steps are not executed: drafts, FFNs on a machine of their own or on
// several instances, experts that are placed anew, ops that no kernel of this project does. `steps`
// are those of `orrery-gpu execute`; of prefill and decode apart, of the side that `scenario` is
// (disaggregated_run.h).
void check_executed_steps(const Scenario& scenario, std::span<const ValidationStep> steps);

// Throws ScenarioError where the scenario's own steps, or where it serves its service, are not:
// besides, several replicas, unlike formats on both sides, micro-batches in a service, sessions,
// autoscaling, a static batch.
void check_executable(const Scenario& scenario);

}  // namespace orrery

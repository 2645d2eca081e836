#pragma once

// Layers of routed experts by themselves, of `validate: layers:`: each is a plan of its own, run
// several times in a row so that no weights stay in the L2 cache.

#include <vector>

#include "sim/plan/plan.h"
#include "sim/scenario/scenario.h"

namespace orrery {

// `validate.layers` of a scenario that is read but for it, into its validation. Throws
// ScenarioError at the entry: unknown keys, no tokens, a name twice, what the scenario's model or
// placement refuses; and at `layers` where the scenario's layers are not executed by themselves
// (design fused, sides or stages of their own).
void read_layers(const Reader& root, Scenario& scenario);

// The scenario as the layer has it.
Scenario scenario_of(const Scenario& scenario, const ValidationLayer& layer);

// Modes in which it runs: as it says or the spec does, eagerly where the host reads counts.
std::vector<LaunchMode> modes_of(const Scenario& scenario, const ValidationLayer& layer);

// One layer, on the ranks of the scenario's mesh.
Plan layer_plan(const Scenario& scenario, const ValidationLayer& layer);

// How often layers run in a row: as many sets of weights as 48 GB hold, at most 16; the same for
// all layers of a scenario.
int num_layer_sets(const Scenario& scenario);

// Throws ScenarioError naming the entry whose ops are not executed on GPUs.
void check_executed_layers(const Scenario& scenario);

}  // namespace orrery

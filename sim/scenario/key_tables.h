#pragma once

// The tables that the keys of keys.h are put together from, one a file.

#include <vector>

#include "sim/scenario/keys.h"

namespace orrery {

// The scenario itself; limits, costs and steps that it asks for.
Section scenario_section();
std::vector<Section> step_sections();
// Its model, with the layer of experts.
std::vector<Section> model_sections();
// Replicas and their GPUs, prefill and decode apart, FFNs apart, autoscaling.
std::vector<Section> placement_sections();
// Limits of an engine, tiers of KV blocks, speculative decoding.
std::vector<Section> engine_sections();
std::vector<Section> workload_sections();
// Files of their own.
std::vector<Section> machine_sections();
std::vector<Section> profile_sections();

}  // namespace orrery

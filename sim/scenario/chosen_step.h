#pragma once

// `chosen_step` of a scenario: the step that is shown in full.

#include <string>

#include "sim/model/model.h"
#include "sim/scenario/reader.h"

namespace orrery {

// The batch under `chosen_step` of the scenario's root, {prefill: [{query, context}], num_decodes,
// decode_context}; an empty one for "median_decode". Throws ScenarioError for anything else, and
// for a batch of nothing.
Batch read_chosen_step(const Reader& root);
// The same as text that read_chosen_step takes.
std::string chosen_step_yaml(const Batch& batch);

}  // namespace orrery

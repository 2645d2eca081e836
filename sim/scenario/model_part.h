#pragma once

// The model part of a scenario: which model, how much of it, in which number formats.

#include <filesystem>

#include "sim/scenario/scenario.h"

namespace orrery {

// model: NAME, or {config: NAME, weights: fp8, ...}. Without formats in it the checkpoint's own.
// Throws ScenarioError.
void read_model_part(const YamlNode& node, const std::filesystem::path& directory,
                     Scenario& scenario);

}  // namespace orrery

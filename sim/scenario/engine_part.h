#pragma once

// The engine part of a scenario: its profile on the scenario's GPUs, and the limits that are not
// the profile's.

#include <filesystem>

#include "sim/scenario/scenario.h"

namespace orrery {

// Of each side the engine on its device. `engine`, null where the scenario has none, limits both
// sides; without a limit there each side has the default on its own device, which is written down
// as a limit of prefill where it is another. Model, machine and placement have been read. Throws
// ScenarioError.
void read_engines(const YamlNode* engine, const YamlNode& root,
                  const std::filesystem::path& directory, Scenario& scenario);

}  // namespace orrery

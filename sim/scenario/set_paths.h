#pragma once

// Files that --set names: a shell completes them from the working directory, so there they are
// looked for first.

#include <filesystem>
#include <string>

#include "sim/scenario/reader.h"

namespace orrery {

// Makes relative paths absolute that are in `value`, of the scenario's key `key` ("workload"), and
// that are there from `working`; others are left for the readers, which look beside the scenario
// and in the project.
void anchor_paths(YamlNode& value, const std::string& key, const std::filesystem::path& working);

}  // namespace orrery

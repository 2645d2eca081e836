#pragma once

// Files that --set names: a shell completes them from the working directory, so there they are
// looked for first.

#include <filesystem>
#include <optional>

#include "sim/scenario/reader.h"

namespace orrery {

// The scenario `root` with relative paths made absolute that --set put there and that are there
// from `working`; none where no path changes. Others are left for the readers, which look beside
// the scenario, in `directory`, and in the project.
std::optional<YamlNode> with_set_paths(const YamlNode& root, const std::filesystem::path& directory,
                                       const std::filesystem::path& working);

}  // namespace orrery

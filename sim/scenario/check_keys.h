#pragma once

// A file as a whole against the keys that it may have.

#include <string_view>

#include "sim/scenario/reader.h"

namespace orrery {

// Throws ScenarioError that names every unknown and every missing key of `root` and the sections in
// it, where there are several; a single one is left to the Reader of its section.
void check_keys(const YamlNode& root, std::string_view section);

}  // namespace orrery

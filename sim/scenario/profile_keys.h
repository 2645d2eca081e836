#pragma once

// The keys of engine profiles, section by section: a part of the tables of keys.h.

#include <vector>

#include "sim/scenario/keys.h"

namespace orrery {

std::vector<Section> profile_sections();

}  // namespace orrery

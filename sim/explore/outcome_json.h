#pragma once

// What candidates did, as JSON: one object in one line, keys as in summary.json.

#include <string>

#include "sim/explore/evaluate.h"

namespace orrery {

std::string to_json(const Outcome& outcome);
std::string to_json(const SteadyState& state);
std::string to_json(const Saturation& saturation);
std::string to_json(const std::vector<OperatingPoint>& curve);

}  // namespace orrery

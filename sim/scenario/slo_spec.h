#pragma once

// What a scenario asks of latencies.

#include <string>

#include "sim/scenario/reader.h"
#include "sim/serve/slo.h"

namespace orrery {

// slo: {ttft: 1 s, tpot: {p99: 50 ms, each: 1 s}, attainment: 0.99}. Throws ScenarioError.
void read_slo(const YamlNode& node, Slo& slo);

// As lines of YAML, with its key; empty where nothing is asked.
std::string to_yaml(const Slo& slo);

}  // namespace orrery

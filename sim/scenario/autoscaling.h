#pragma once

// The autoscaling part of a scenario:
//
//   autoscaling: {min_replicas: 1, max_replicas: 8, target: {metric: queued_requests, value: 4},
//                 interval: 15 s, start_up: 90 s, scale_down_delay: 300 s, tolerance: 0.1}

#include <string>

#include "sim/scenario/reader.h"
#include "sim/serve/serve.h"

namespace orrery {

// Throws ScenarioError.
AutoscalingConfig read_autoscaling(const YamlNode& node);

// With its key.
std::string to_yaml(const AutoscalingConfig& config);

}  // namespace orrery

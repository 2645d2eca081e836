#pragma once

// Requests in memory, and where scenarios get those of foreign traces from.

#include <string>

#include "sim/scenario/scenario.h"

namespace orrery::bindings {

// Every scenario made with them shares them.
struct Requests {
  SharedRequests workload;
};

// `root`, with orrery.traces.read as the reader of foreign traces.
ProjectPaths project_paths(const std::string& root);

}  // namespace orrery::bindings

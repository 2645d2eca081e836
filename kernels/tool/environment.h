#pragma once

// What runs on GPUs say of the host and of their memory.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/execute/executor.h"
#include "sim/units/units.h"

namespace orrery::tool {

// The lines of environment.txt, by key: gpu, num_gpus, cuda, nccl, driver, revision, date,
// power_limit_w, sm_clock_mhz (as it is now); "nvml" says why the last ones are not there.
std::map<std::string, std::string> environment(int num_gpus);

// Names and sizes of the terms of memory.csv, in its order.
std::vector<std::pair<std::string_view, Bytes>> memory_terms(const RankMemory& memory);

}  // namespace orrery::tool

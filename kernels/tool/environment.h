#pragma once

// What runs on GPUs say of the host.

#include <map>
#include <string>

namespace orrery::tool {

// The lines of environment.txt, by key: gpu, num_gpus, cuda, nccl, driver, revision, date,
// power_limit_w, sm_clock_mhz (as it is now); "nvml" says why the last ones are not there.
std::map<std::string, std::string> environment(int num_gpus);

}  // namespace orrery::tool

#pragma once

// GPUs by the name that the driver gives them. No CUDA.

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "sim/machine/machine.h"

namespace orrery::calibrate {

// Peaks and rates of each topologies/devices/*/device.yaml that states a driver_name, by that: the
// work model, whose ratio to the times is interpolated, must be the simulator's.
const std::map<std::string, Device, std::less<>>& known_devices();

// One that is not known has the name "unknown-gpu" and an H100's figures, which only shape the
// interpolation.
Device known_device(std::string_view driver_name);

}  // namespace orrery::calibrate

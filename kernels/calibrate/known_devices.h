#pragma once

// GPUs by the name that the driver gives them. No CUDA.

#include <string_view>

#include "sim/machine/machine.h"

namespace orrery::calibrate {

// Peaks and rates as in topologies/devices/<name>/device.yaml (a test holds them equal): the work
// model, whose ratio to the times is interpolated, must be the simulator's. A device that is not
// known has the name "unknown-gpu" and an H100's figures, which only shape the interpolation.
Device known_device(std::string_view driver_name);

}  // namespace orrery::calibrate

#pragma once

// How the ops of a step reach the GPU.

#include <array>
#include <cstdint>
#include <string_view>

namespace orrery {

enum class LaunchMode : std::uint8_t {
  kEager,      // one launch for each from the host
  kGraph,      // nodes of a replayed CUDA graph
  kMegakernel  // instructions of one kernel (sim/megakernel): whole steps of few decodes
};
// What files and options call those of steps, and those that single kernels have times in, in the
// order of the enum.
inline constexpr std::array<std::string_view, 3> kStepModes = {"eager", "graph", "megakernel"};
inline constexpr std::array<std::string_view, 2> kLaunchModes = {kStepModes[0], kStepModes[1]};
std::string_view to_text(LaunchMode mode);
// Of kLaunchModes; throws std::invalid_argument.
LaunchMode parse_launch_mode(std::string_view text);

}  // namespace orrery

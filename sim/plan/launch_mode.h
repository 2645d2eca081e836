#pragma once

// How the ops of a step reach the GPU.

#include <array>
#include <cstdint>
#include <string_view>

namespace orrery {

enum class LaunchMode : std::uint8_t {
  kEager,      // one launch for each from the host
  kGraph,      // nodes of a replayed CUDA graph
  kMegakernel  // instructions of one kernel (sim/megakernel); executed, not priced yet
};
// What files and options call those that have prices, in the order of the enum.
inline constexpr std::array<std::string_view, 2> kLaunchModes = {"eager", "graph"};
std::string_view to_text(LaunchMode mode);
LaunchMode parse_launch_mode(std::string_view text);  // throws std::invalid_argument

}  // namespace orrery

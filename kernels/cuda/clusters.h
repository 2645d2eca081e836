#pragma once

// How many clusters of blocks a GPU runs at once. Clusters lie within parts of the GPU whose sizes
// differ from one GPU to the next, so this is not the number of SMs by the blocks.

#include <array>
#include <cstddef>

namespace orrery::cuda {

// Clusters of 1, 2, 4, 8 and 16 blocks.
inline constexpr std::array<int, 5> kClusterSizes{1, 2, 4, 8, 16};
using ClusterCounts = std::array<int, kClusterSizes.size()>;

// Of the current device, for blocks that have an SM each; read once per device. Throws cuda::Error.
const ClusterCounts& most_clusters();

}  // namespace orrery::cuda

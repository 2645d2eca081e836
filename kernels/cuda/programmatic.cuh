#pragma once

// The device side of programmatic dependent launch (cuda::LaunchShape::programmatic).

#include <cuda_runtime.h>

namespace orrery {

// Waits for all that the stream's earlier kernels wrote, then lets the next kernel start its blocks
// as this one's leave room, which it may since it waits likewise. Saves most of the gap between two
// kernels. All threads call it, before they touch global memory.
__device__ inline void begin_dependent() {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

}  // namespace orrery
